// Reads the inputs of brigade train: images, labels and text. The first byte chooses.
#include <cstdlib>

#include "fuzz.h"
#include "train/data/data.h"
#include "train/lr_schedule.h"

namespace {

using namespace brigade;

void idx(std::string_view text, int dimensions) {
  const tool::IdxFile file = tool::parse_idx(text, "input", dimensions);
  uint64_t product = 1;
  for (const int64_t size : file.sizes) product *= static_cast<uint64_t>(size);
  if (file.values.size() != product || file.values.end() != text.end()) std::abort();
}

void characters(std::string_view text) {
  const tool::TrainData data = tool::parse_text(text, "input");
  if (data.train.bytes.size() + data.test.bytes.size() != text.size()) std::abort();
  for (const auto* part : {&data.train, &data.test})
    for (const uint8_t character : part->bytes)
      if (character >= data.classes.size()) std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  // Not copied: a string has room behind its end, where a read would not be noticed.
  const std::string_view text = fuzzing::text_of(bytes + 1, size - 1);
  fuzzing::accepts<ConfigError>([&] {
    switch (bytes[0] % 3) {
      case 0:
        return idx(text, 3);
      case 1:
        return idx(text, 1);
      default:
        return characters(text);
    }
  });
  fuzzing::accepts<ConfigError>([&] { tool::LrSchedule(text, 100); });
  return 0;
}
