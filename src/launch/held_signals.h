// The signals that end a job, taken one by one.
#pragma once
#include "base/signals.h"

namespace brigade::launching {

// Holds back the signals that end a job, and the launcher's own SIGPIPE, from construction
// on, and hands the former out through a descriptor; puts things back at the end.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int fd() const { return fd_; }
  // The next one that has come; 0: none.
  int take() const;
  // The thread's mask as it was before.
  const sigset_t& mask_before() const { return held_.mask_before(); }

 private:
  const sigset_t ending_;
  const base::HeldBack held_;
  int fd_ = -1;
};

}  // namespace brigade::launching
