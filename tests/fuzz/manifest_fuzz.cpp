// Reads a manifest, the name of a file in a checkpoint's folder, and the layout of buckets.
#include <array>
#include <cstdlib>

#include "brigade/checkpoint.h"
#include "checkpoint/buckets.h"
#include "checkpoint/manifest.h"
#include "fuzz.h"

namespace {

using namespace brigade;

void parse(const std::vector<std::string>& values) {
  constexpr std::array kKeys{"set",          "step",       "ranks",
                             "parts.shared", "parts.rank", "checksum.shared",
                             "checksum.rank"};
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < kKeys.size() && i < values.size(); ++i)
    metadata[kKeys[i]] = values[i];
  fuzzing::accepts<CheckpointError>([&] {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest("manifest", metadata);
    if (manifest.set.find('/') != std::string::npos || manifest.ranks < 1) std::abort();
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input = fuzzing::text_of(bytes, size);
  const std::vector<std::string> pieces = fuzzing::pieces(input);
  parse(pieces);
  const auto set = checkpoint::set_of_file(pieces[0]);
  if (set && (set->find('/') != std::string::npos || set->find('\0') != std::string::npos))
    std::abort();
  fuzzing::accepts<CheckpointError>([&] { checkpoint::buckets_of(std::string(input)); });
  return 0;
}
