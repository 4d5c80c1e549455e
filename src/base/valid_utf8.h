// Text for people that quotes bytes of unknown origin.
#pragma once
#include <string>

namespace brigade::base {

// Returns `text` with each byte that is not valid UTF-8 as \xNN, and NUL as \x00.
std::string valid_utf8(std::string text);

}  // namespace brigade::base
