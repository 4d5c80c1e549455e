#include "launch/held_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <ctime>

namespace brigade::launching {
namespace {

bool ignored(int number) {
  struct sigaction action {};
  sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Signals that the caller ignores stay ignored: nohup and background jobs rely on that.
sigset_t not_ignored(sigset_t signals) {
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&signals, number) == 1 && ignored(number)) sigdelset(&signals, number);
  }
  return signals;
}

sigset_t with_pipe(sigset_t signals) {
  sigaddset(&signals, SIGPIPE);
  return signals;
}

}  // namespace

HeldSignals::HeldSignals()
    : ending_(not_ignored(base::ending_signals())),
      held_(with_pipe(ending_)),
      fd_(signalfd(-1, &ending_, SFD_CLOEXEC | SFD_NONBLOCK)) {}

HeldSignals::~HeldSignals() {
  if (fd_ >= 0) close(fd_);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  if (!sigismember(&mask_before(), SIGPIPE)) {
    while (sigtimedwait(&pipe, nullptr, &now) > 0) {
    }
  }
}

int HeldSignals::take() const {
  signalfd_siginfo info;
  return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                      : 0;
}

}  // namespace brigade::launching
