#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "launch/attempt.h"

namespace brigade::launching {
namespace {

constexpr std::array kEnding{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool ignored(int number) {
  struct sigaction action {};
  sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

HeldSignals::HeldSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  // What the caller ignores stays ignored: nohup, and a shell's background jobs, count on
  // it.
  for (int number : kEnding) {
    if (!ignored(number)) sigaddset(&ending, number);
  }
  sigset_t held = ending;
  sigaddset(&held, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &held, &before_);
  fd_ = signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
}

HeldSignals::~HeldSignals() {
  if (fd_ >= 0) close(fd_);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  if (!sigismember(&before_, SIGPIPE)) {
    while (sigtimedwait(&pipe, nullptr, &now) > 0) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int HeldSignals::take() const {
  signalfd_siginfo info;
  return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                      : 0;
}

}  // namespace brigade::launching
