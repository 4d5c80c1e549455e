// Notes Ctrl-C, and other signals that end a job, for the end of a step.
#pragma once

namespace brigade::tool {

// While one of these lives, the first SIGINT or SIGTERM of this process is only noted, and
// a second one ends the process as usual. There may be one at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Whether a signal has come.
  bool raised() const;
  // Ends this process as the signal would have done.
  [[noreturn]] void take() const;
};

}  // namespace brigade::tool
