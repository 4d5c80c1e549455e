// Reads and checks what brigade train learns from before any worker starts, so that the
// workers share the memory. It holds plain numbers, because a process that computes with
// torch has threads and cannot fork.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::tool {

// Examples, one after the other, each with a class. Text has no labels.
struct Examples {
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> labels;
};

struct TrainData {
  enum class Kind : std::uint8_t { images, text };
  Kind kind = Kind::images;
  std::string name;  // as given
  // The size of an image; 0 for text.
  std::int64_t height = 0, width = 0;
  // The classes' names by label. For text, its characters, by the number that stands for
  // each in `bytes`.
  std::vector<std::string> classes;
  double scale = 1;  // examples are divided by it
  Examples train, test;
  std::uint64_t fingerprint = 0;  // of all bytes read

  std::int64_t values() const { return height * width; }
};

// `spec`: "digits", "idx:FOLDER" or "text:FILE". Throws ConfigError, which names the file
// and the offset, for anything that cannot be used.
TrainData load_data(const std::string& spec);

// The steps of load_data, for texts in memory. Errors call the text `name`.
TrainData parse_text(std::string_view text, const std::string& name);
// One IDX file of unsigned bytes: the sizes of its dimensions and its values.
struct IdxFile {
  std::vector<std::int64_t> sizes;
  std::string_view values;  // into `bytes`
};
IdxFile parse_idx(std::string_view bytes, const std::string& name, int dimensions);

}  // namespace brigade::tool
