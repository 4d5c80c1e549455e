// What LibTorch's and gloo's exceptions say, without stack traces and places in their
// sources.
#pragma once
#include <c10/util/Exception.h>

#include <string>

namespace brigade::base {

inline std::string cause_of(const std::exception& error) {
  auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch ? torch->what_without_backtrace() : error.what();
  if (auto end = text.find("] "); text.rfind("[/", 0) == 0 && end != std::string::npos) {
    text.erase(0, end + 2);
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace brigade::base
