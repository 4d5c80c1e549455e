// The parts of a safetensors file, for the reader and the writer.
//
// A file is: the header's length (8 bytes, little-endian), the header (JSON, filled up with
// spaces so that the data begin at a multiple of 8), the data. An entry of the header gives
// a tensor's dtype, shape, and first and last byte in the data; the data have no holes.
// In our files the header's metadata have the hash of each tensor's bytes, and the hash of
// length and header. The latter is taken with zeros in the place of its own digits.
#pragma once
#include <ATen/core/Tensor.h>

#include <bit>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/checkpoint.h"

namespace brigade::checkpoint {

static_assert(std::endian::native == std::endian::little);

inline constexpr const char* kMetadata = "__metadata__";
inline constexpr const char* kFormat = "brigade.format";
inline constexpr const char* kChecksum = "brigade.checksum";     // of the header
inline constexpr const char* kChecksumOf = "brigade.checksum/";  // of a tensor, + name
inline constexpr const char* kNoChecksum = "0000000000000000";
inline constexpr uint64_t kMaxHeader = 100'000'000;  // as Python's

// The format's name of a dtype; none where it has none.
std::optional<std::string_view> name_of(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of(std::string_view name);

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the data
  uint64_t end = 0;
};
struct Header {
  std::vector<Entry> entries;  // in the order of the data
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> checksums;  // by tensor; all or none
  std::string checksum;                          // of the header; empty: the file has none
  uint64_t data_begin = 0;
};

// 16 hexadecimal digits.
std::string digits(uint64_t hash);

// The hash of length and header text. The hash's own digits, at `place`, count as zeros.
uint64_t header_hash(std::string text, size_t place);
// Where the digits of the header's own hash begin; npos if it has none.
size_t checksum_place(std::string_view text);

// Opens the file and checks everything except the bytes of the tensors.
Header read_header(const std::string& path, Checksums checksums);
// As save_safetensors. Returns the header's checksum, which stands for the whole content.
std::string write_file(const std::string& path, const SafetensorsFile& content);
// As load_safetensors. Unless empty, `checksum` must be the header's.
SafetensorsFile read_file(const std::string& path, Checksums checksums,
                          const std::string& checksum = "");

}  // namespace brigade::checkpoint
