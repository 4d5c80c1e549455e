#include "group/store/watchdog.h"

#include <unistd.h>

#include <cstdio>

#include "base/error_file.h"

namespace brigade::group {

Watchdog::Watchdog(std::string who, std::chrono::milliseconds limit)
    : who_(std::move(who)), limit_(limit) {}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  if (thread_process_ != getpid()) {
    // A fork copies the object but not its thread, so there is none to join.
    thread_.detach();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Watchdog::Guard::Guard(Watchdog& dog, const char* call, const std::string& key,
                       std::chrono::milliseconds limit)
    : dog(dog) {
  std::lock_guard lock(dog.mutex_);
  dog.call_ = call;
  dog.key_ = &key;
  dog.begun_ = Clock::now();
  dog.deadline_ = dog.begun_ + limit + kGrace;
  if (!dog.thread_.joinable() || dog.thread_process_ != getpid()) {
    dog.start();
  } else if (dog.deadline_ < dog.sleeps_until_) {
    dog.changed_.notify_one();
  }
}

Watchdog::Guard::~Guard() {
  std::lock_guard lock(dog.mutex_);
  dog.call_ = nullptr;
}

void Watchdog::start() {
  if (thread_.joinable()) thread_.detach();
  thread_process_ = getpid();
  sleeps_until_ = deadline_;
  thread_ = std::thread([this] { run(); });
}

// Sleeps until the deadline of the call under way or, when idle, for the usual limit, so
// that a call with that limit need not wake this thread.
void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (call_ && Clock::now() >= deadline_) bite();
    sleeps_until_ = call_ ? deadline_ : Clock::now() + limit_ + kGrace;
    changed_.wait_until(lock, sleeps_until_);
  }
}

void Watchdog::bite() {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f",
                std::chrono::duration<double>(Clock::now() - begun_).count());
  std::string text = who_ + " does not answer: " + call_ +
                     (key_->empty() ? "" : " of '" + *key_ + "'") +
                     " is without reply since " + seconds +
                     " s; is its process stopped, or the network cut?";
  std::string line = "brigade: " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(1);
  base::write_error_file("TimeoutError: " + text, 1, Failure::timeout);
  _exit(1);
}

}  // namespace brigade::group
