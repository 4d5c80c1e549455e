// The whole terminal, and the keys that are pressed.
#pragma once
#include <termios.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/terminal.h"

namespace brigade::tool {

// While it lives the terminal shows what draw() gives; then it is as it was before.
class Screen {
 public:
  explicit Screen(const Terminal& terminal);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Cut to what fits.
  void draw(const std::vector<std::string>& lines) const;
  // Waits that long at most. True: q or Ctrl-C was pressed, or this process shall end.
  bool asked_to_end(std::chrono::milliseconds limit) const;

 private:
  const Terminal& terminal_;
  std::optional<termios> before_;  // none: stdin is no terminal
};

}  // namespace brigade::tool
