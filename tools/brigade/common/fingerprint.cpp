#include "common/fingerprint.h"

#include <cinttypes>
#include <cstdio>

#include "base/hash.h"

namespace brigade::tool {
namespace {

std::string hex_of(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  return base::hash64({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
}

}  // namespace

std::string fingerprint(const std::vector<at::Tensor>& tensors) {
  std::string hashes;
  for (const at::Tensor& tensor : tensors) hashes += hex_of(hash_of(tensor));
  return hex_of(base::hash64(hashes));
}

}  // namespace brigade::tool
