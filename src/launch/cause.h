// What LibTorch's exceptions say, without their stack traces.
#pragma once
#include <c10/util/Exception.h>

#include <string>

namespace brigade::launching {

inline std::string cause_of(const std::exception& error) {
  auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace brigade::launching
