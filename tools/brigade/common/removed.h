// Says for commands and options of earlier versions what to use instead.
#pragma once
#include <string>

namespace brigade::tool {

// The remedy for a command line that still has this word; empty if no version had it. An
// option may include its value: "--metrics-port=9400".
std::string instead_of(const std::string& word);

}  // namespace brigade::tool
