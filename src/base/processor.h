// What the processor is called.
#pragma once
#include <string>

namespace brigade::base {

// "Intel(R) Xeon(R) …", "unknown" where the system does not say.
std::string processor_name();

}  // namespace brigade::base
