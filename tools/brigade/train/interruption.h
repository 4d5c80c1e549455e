// Ctrl-C, and other signals that end a job, noted for the end of a step.
#pragma once

namespace brigade::tool {

// While one lives, the first SIGINT or SIGTERM of this process is only noted; a second one
// ends the process as ever. One at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Whether one has come.
  bool raised() const;
  // Ends this process as the signal would have.
  [[noreturn]] void take() const;
};

}  // namespace brigade::tool
