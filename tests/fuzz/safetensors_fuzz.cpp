// Reads a safetensors file of any bytes. Then reads the same bytes as header and data of a
// file with the right length and checksum, to reach the code behind these checks.
#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/valid_utf8.h"
#include "checkpoint/format.h"
#include "fuzz.h"

namespace {

using namespace brigade;

// A file in memory, with a name.
class MemoryFile {
 public:
  void replace(std::string_view bytes) {
    if (ftruncate(fd_, 0) != 0 ||
        pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  int fd_ = memfd_create("input", MFD_CLOEXEC);
  std::string path_ = "/proc/self/fd/" + std::to_string(fd_);
};

void load(std::string_view bytes) {
  static MemoryFile file;
  file.replace(bytes);
  try {
    const SafetensorsFile content = load_safetensors(file.path());
    size_t total = 0;
    for (const auto& [name, tensor] : content.tensors) total += tensor.nbytes();
    if (total > bytes.size()) std::abort();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    if (!text.starts_with(file.path()) || text != base::valid_utf8(text)) std::abort();
  }
}

std::string repaired(std::string_view bytes) {
  const size_t end = std::min(bytes.rfind('}'), bytes.size() - 1) + 1;
  std::string header(bytes.substr(0, end));
  const size_t place = checkpoint::checksum_place(header);
  if (place != std::string::npos) {
    const std::string checksum = checkpoint::digits(checkpoint::header_hash(header, place));
    header.replace(place, checksum.size(), checksum);
  }
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
         std::string(bytes.substr(end));
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input = fuzzing::text_of(bytes, size);
  load(input);
  if (!input.empty()) load(repaired(input));
  if (input.size() > 8) load(repaired(input.substr(8)));
  return 0;
}
