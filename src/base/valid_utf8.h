// Text for people that quotes bytes of unknown origin.
#pragma once
#include <string>

namespace brigade::base {

// `text` where it is valid UTF-8; each byte that is not becomes \xNN, and NUL becomes \x00.
std::string valid_utf8(std::string text);

}  // namespace brigade::base
