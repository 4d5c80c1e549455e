// Blocks signals for a while.
#pragma once
#include <signal.h>

namespace brigade::base {

// The signals by which users and systems end a process: SIGINT, SIGTERM, SIGHUP, SIGQUIT.
sigset_t ending_signals();

// Blocks these signals for the calling thread while it lives. They stay pending and are
// delivered when it ends, unless they were taken meanwhile.
class HeldBack {
 public:
  explicit HeldBack(const sigset_t& signals) {
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~HeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;

  // The thread's mask as it was before.
  const sigset_t& mask_before() const { return before_; }

 private:
  sigset_t before_;
};

}  // namespace brigade::base
