// Receives, one by one, the signals that end a job.
#pragma once
#include "base/signals.h"

namespace brigade::launching {

// From construction on blocks the signals that end a job, and SIGPIPE for the launcher
// itself. Delivers the former through a descriptor. The destructor restores the mask.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int fd() const { return fd_; }
  // Returns the next signal that has arrived; 0: none.
  int take() const;
  // Returns the thread's mask as it was before.
  const sigset_t& mask_before() const { return held_.mask_before(); }

 private:
  const sigset_t ending_;
  const base::HeldBack held_;
  int fd_ = -1;
};

}  // namespace brigade::launching
