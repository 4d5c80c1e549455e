// The handwritten digits of data/digits.csv, which are part of the program.
#pragma once
#include <string_view>

namespace brigade::tool {

// The lines of the file: 64 pixels from 0 to 16, and the digit.
std::string_view digits_text();

}  // namespace brigade::tool
