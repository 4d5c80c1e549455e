// Shared by the fuzzing programs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace brigade::fuzzing {

inline std::string_view text_of(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Calls `act`, which may throw `Expected`. Anything else ends the program, and libFuzzer
// keeps the input.
template <class Expected, class Act>
bool accepts(Act&& act) {
  try {
    act();
    return true;
  } catch (const Expected&) {
    return false;
  }
}

// The parts between zero bytes.
inline std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    all.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

}  // namespace brigade::fuzzing
