#include "train/data/data.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/hash.h"
#include "base/input_file.h"
#include "base/option_spec.h"
#include "brigade/error.h"
#include "train/data/digits.h"
#include "train/data/gunzip.h"

namespace brigade::tool {
namespace {

using Kind = TrainData::Kind;

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("--data: cannot read '" + path + "': " + why);
  };
  std::string text;
  try {
    text = base::InputFile(path).text();
    if (path.ends_with(".gz")) text = gunzip(text);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (text.empty()) refuse("the file is empty");
  return text;
}

// ---- IDX --------------------------------------------------------------------------------

// These files are in use under several names.
std::string find_idx(const std::string& folder, const std::string& stem,
                     const std::string& dimensions) {
  struct stat info {};
  const std::array names{folder + "/" + stem + "-idx" + dimensions + "-ubyte",
                         folder + "/" + stem + ".idx" + dimensions + "-ubyte"};
  for (const std::string& name : names) {
    if (stat(name.c_str(), &info) == 0) return name;
  }
  for (const std::string& name : names) {
    if (stat((name + ".gz").c_str(), &info) == 0) return name + ".gz";
  }
  throw ConfigError("--data: there is no '" + names[0] + "', nor with .gz");
}

struct Images {
  std::int64_t height = 0, width = 0;
  Examples examples;
};

Images load_images(const std::string& folder, const std::string& which,
                   std::uint64_t& seen) {
  const std::string image_name = find_idx(folder, which + "-images", "3");
  const std::string label_name = find_idx(folder, which + "-labels", "1");
  const std::string image_bytes = read_file(image_name);
  const std::string label_bytes = read_file(label_name);
  const IdxFile images = parse_idx(image_bytes, image_name, 3);
  const IdxFile labels = parse_idx(label_bytes, label_name, 1);
  if (images.sizes[0] != labels.sizes[0]) {
    throw ConfigError("--data: " + image_name + " has " + std::to_string(images.sizes[0]) +
                      " images, but " + label_name + " has " +
                      std::to_string(labels.sizes[0]) + " labels");
  }
  seen ^= base::hash64(image_bytes) + 3 * base::hash64(label_bytes);
  Images all{.height = images.sizes[1], .width = images.sizes[2]};
  all.examples.bytes.assign(images.values.begin(), images.values.end());
  for (const char label : labels.values)
    all.examples.labels.push_back(static_cast<std::uint8_t>(label));
  return all;
}

TrainData load_idx(const std::string& folder) {
  TrainData data{.kind = Kind::images, .scale = 255};
  Images train = load_images(folder, "train", data.fingerprint);
  Images test = load_images(folder, "t10k", data.fingerprint);
  if (train.height != test.height || train.width != test.width) {
    throw ConfigError("--data: the images for training and for the test in '" + folder +
                      "' differ in size");
  }
  if (train.height < 1 || train.width < 1 || train.examples.labels.empty() ||
      test.examples.labels.empty()) {
    throw ConfigError("--data: '" + folder + "' holds no images");
  }
  data.height = train.height;
  data.width = train.width;
  std::int64_t largest = 0;
  for (const Examples* part : {&train.examples, &test.examples})
    for (const std::int64_t label : part->labels) largest = std::max(largest, label);
  for (std::int64_t label = 0; label <= largest; ++label)
    data.classes.push_back(std::to_string(label));
  data.train = std::move(train.examples);
  data.test = std::move(test.examples);
  return data;
}

TrainData load_digits() {
  TrainData data{.kind = Kind::images, .height = 8, .width = 8, .scale = 16};
  for (int label = 0; label < 10; ++label) data.classes.push_back(std::to_string(label));
  data.fingerprint = base::hash64(digits_text());
  std::istringstream lines{std::string(digits_text())};
  std::string line, number;
  for (int row = 0; std::getline(lines, line); ++row) {
    // Every fifth row is for the test.
    Examples& part = row % 5 == 4 ? data.test : data.train;
    std::istringstream numbers(line);
    for (std::int64_t i = 0; i < data.values() && std::getline(numbers, number, ','); ++i)
      part.bytes.push_back(static_cast<std::uint8_t>(std::stoi(number)));
    std::getline(numbers, number);
    part.labels.push_back(std::stoi(number));
  }
  return data;
}

}  // namespace

IdxFile parse_idx(std::string_view bytes, const std::string& name, int dimensions) {
  const auto refuse = [&](std::size_t offset, const std::string& what) {
    throw ConfigError("--data: " + name + ", offset " + std::to_string(offset) + ": " +
                      what);
  };
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); };
  const std::size_t header = 4 + 4 * static_cast<std::size_t>(dimensions);
  if (bytes.size() < header) {
    refuse(bytes.size(),
           "the file ends within its header of " + std::to_string(header) + " bytes");
  }
  if (byte(0) != 0 || byte(1) != 0) refuse(0, "an IDX file begins with two zero bytes");
  if (byte(2) != 8) {
    refuse(2, "the values are of type " + std::to_string(byte(2)) +
                  ", expected 8 (unsigned bytes)");
  }
  if (byte(3) != dimensions) {
    refuse(3,
           std::to_string(byte(3)) + " dimensions, expected " + std::to_string(dimensions));
  }
  IdxFile file;
  const std::uint64_t there = bytes.size() - header;
  std::uint64_t wanted = 1;
  for (int i = 0; i < dimensions; ++i) {
    const std::size_t at = 4 + 4 * static_cast<std::size_t>(i);
    std::uint64_t size = 0;
    for (std::size_t k = 0; k < 4; ++k) size = size << 8 | byte(at + k);
    file.sizes.push_back(static_cast<std::int64_t>(size));
    // Both below 2^32, or more than any file holds.
    wanted = wanted > there ? wanted : wanted * size;
  }
  if (wanted != there) {
    refuse(header, "the header promises " +
                       (wanted > there ? "more" : std::to_string(wanted)) +
                       " values, the file has " + std::to_string(there));
  }
  file.values = bytes.substr(header);
  return file;
}

TrainData parse_text(std::string_view text, const std::string& name) {
  TrainData data{.kind = Kind::text, .name = name};
  std::array<int, 256> number{};
  number.fill(-1);
  for (const char c : text) number[static_cast<std::uint8_t>(c)] = 0;
  for (int c = 0; c < 256; ++c) {
    if (number[static_cast<std::size_t>(c)] < 0) continue;
    number[static_cast<std::size_t>(c)] = static_cast<int>(data.classes.size());
    data.classes.emplace_back(1, static_cast<char>(c));
  }
  if (data.classes.size() < 2) {
    throw ConfigError("--data: " + name + " has fewer than two different characters");
  }
  const std::size_t for_training = text.size() - text.size() / 10;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int token = number[static_cast<std::uint8_t>(text[i])];
    (i < for_training ? data.train : data.test)
        .bytes.push_back(static_cast<std::uint8_t>(token));
  }
  data.fingerprint = base::hash64(text);
  return data;
}

TrainData load_data(const std::string& spec) {
  const std::size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string path = colon == std::string::npos ? "" : spec.substr(colon + 1);
  static constexpr std::array<std::string_view, 3> kKinds{"digits", "idx", "text"};
  if (std::ranges::find(kKinds, kind) == kKinds.end()) {
    throw ConfigError("--data: no data set named '" + kind + "'" +
                      base::suggestion(kind, kKinds));
  }
  if ((kind == "digits") != path.empty()) {
    throw ConfigError(
        "--data is '" + spec + "'; expected " +
        (kind == "digits" ? kind : kind + ":" + (kind == "idx" ? "FOLDER" : "FILE")));
  }
  TrainData data = kind == "digits" ? load_digits()
                   : kind == "idx"  ? load_idx(path)
                                    : parse_text(read_file(path), path);
  data.name = spec;
  return data;
}

}  // namespace brigade::tool
