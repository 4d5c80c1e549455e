// The structure of a safetensors file, for the reader and the writer.
//
// A file has the header's length (8 bytes, little-endian), the header (JSON, padded with
// spaces so that the data begin at a multiple of 8) and the data. An entry of the header
// gives a tensor's dtype, shape, and first and last byte in the data; the data have no
// holes. In our files the header's metadata have the hash of each tensor's bytes, and the
// hash of length and header, which is computed with zeros in the place of its own digits.
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
inline constexpr const char* kChecksum = "brigade.checksum";     // the header's
inline constexpr const char* kChecksumOf = "brigade.checksum/";  // + a tensor's name
inline constexpr const char* kNoChecksum = "0000000000000000";
inline constexpr uint64_t kMaxHeader = 100'000'000;  // Python's limit

// Returns the format's name of a dtype; none if it has none.
std::optional<std::string_view> name_of(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of(std::string_view name);

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset in the data
  uint64_t end = 0;
};
struct Header {
  std::vector<Entry> entries;  // in the order of the data
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> checksums;  // by tensor; all or none
  std::string checksum;                          // of the header; empty: the file has none
  uint64_t data_begin = 0;
};

// Returns 16 hexadecimal digits.
std::string digits(uint64_t hash);

// Returns the hash of length and header text. Its own digits, at `place`, count as zeros.
uint64_t header_hash(std::string text, size_t place);
// Returns where the digits of the header's own hash begin; npos if it has none.
size_t checksum_place(std::string_view text);

// Opens the file and checks everything except the bytes of the tensors.
Header read_header(const std::string& path, Checksums checksums);
// Does what save_safetensors does. Returns the header's checksum, which covers everything.
std::string write_file(const std::string& path, const SafetensorsFile& content);
// Does what load_safetensors does. Unless empty, `checksum` must be the header's.
SafetensorsFile read_file(const std::string& path, Checksums checksums,
                          const std::string& checksum = "");

}  // namespace brigade::checkpoint
