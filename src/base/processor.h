// The name of the processor.
#pragma once
#include <string>

namespace brigade::base {

// "Intel(R) Xeon(R) …", or "unknown".
std::string processor_name();

}  // namespace brigade::base
