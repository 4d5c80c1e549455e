// Commands and options of earlier versions, for errors that say what to use instead.
#pragma once
#include <string>

namespace brigade::tool {

// The remedy for a command line that still has this word; empty: no version had it. An
// option may have its value behind it: "--metrics-port=9400".
std::string instead_of(const std::string& word);

}  // namespace brigade::tool
