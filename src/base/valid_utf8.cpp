#include "base/valid_utf8.h"

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace brigade::base {
namespace {

// The length of the valid character at the beginning of `text`; 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return first == 0 ? 0 : 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  uint32_t code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  // Rejects overlong forms, surrogates and values beyond the last character.
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool good = first >= 0xc0 && first < 0xf8 && code >= kSmallest[length] &&
                    !surrogate && code <= 0x10ffff;
  return good ? length : 0;
}

}  // namespace

std::string valid_utf8(std::string text) {
  std::string out;
  std::string_view rest = text;
  size_t valid = 0;
  while (valid < rest.size()) {
    if (const size_t length = character_length(rest.substr(valid))) {
      valid += length;
      continue;
    }
    char code[8];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<uint8_t>(rest[valid]));
    out.append(rest.substr(0, valid)).append(code);
    rest.remove_prefix(valid + 1);
    valid = 0;
  }
  if (out.empty()) return text;
  return out.append(rest);
}

}  // namespace brigade::base
