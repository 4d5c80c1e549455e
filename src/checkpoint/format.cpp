#include "checkpoint/format.h"

#include <array>
#include <cstdio>
#include <utility>

#include "base/hash.h"
#include "base/valid_utf8.h"

namespace brigade {

CheckpointError::CheckpointError(const std::string& what) : Error(base::valid_utf8(what)) {}

namespace checkpoint {
namespace {

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 19> kDtypes{{
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kShort, "I16"},
    {at::kUInt16, "U16"},
    {at::kInt, "I32"},
    {at::kUInt32, "U32"},
    {at::kLong, "I64"},
    {at::kUInt64, "U64"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kFloat, "F32"},
    {at::kDouble, "F64"},
    {at::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
}};

}  // namespace

std::optional<std::string_view> name_of(at::ScalarType dtype) {
  for (const auto& [known, name] : kDtypes)
    if (known == dtype) return name;
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const auto& [dtype, known] : kDtypes)
    if (known == name) return dtype;
  return std::nullopt;
}

std::string digits(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

uint64_t header_hash(std::string text, size_t place) {
  const std::string_view zeros = kNoChecksum;
  text.replace(place, zeros.size(), zeros);
  const uint64_t length = text.size();
  std::string all(reinterpret_cast<const char*>(&length), sizeof length);
  return base::hash64(all + text);
}

size_t checksum_place(std::string_view text) {
  // Inside of a JSON string a quote has a backslash before it, so only the key matches.
  constexpr std::string_view key = "\"brigade.checksum\":\"";
  const size_t found = text.find(key);
  if (found == std::string_view::npos) return found;
  const size_t place = found + key.size();
  return place + 16 <= text.size() ? place : std::string_view::npos;
}

}  // namespace checkpoint
}  // namespace brigade
