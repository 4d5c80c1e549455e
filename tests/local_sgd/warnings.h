// Collects torch's warnings, and the text of a refusal.
#pragma once
#include <c10/util/Exception.h>

#include <string>

#include "brigade/error.h"

namespace brigade::testing {

// While it lives, collects the warnings of this thread.
class Warnings : private c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  const std::string& text() const { return text_; }

 private:
  void process(const c10::Warning& warning) override { text_ += warning.msg() + "\n"; }
  std::string text_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// The text of the ConfigError that `body` throws.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

}  // namespace brigade::testing
