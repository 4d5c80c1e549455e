// Ends the process, with a report, when a call that cannot be interrupted exceeds its
// limit.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace brigade::group {

// LibTorch's TCPStore waits without a limit for a server that is stopped or silent, even in
// its constructor, and nothing can interrupt it. So each call runs under watch(): if it
// does not return in time, one line goes to stderr and to TORCHELASTIC_ERROR_FILE, and the
// process ends with exit code 1.
//
// Each object has one thread, started by the first call, in the process that makes it; a
// call costs two uncontended locks. Calls of one object run one after the other; waiting
// for another thread's call does not count.
class Watchdog {
 public:
  // `who` opens the report: "rank 1: store at 127.0.0.1:29500".
  Watchdog(std::string who, std::chrono::milliseconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // A watched call may take `limit` plus kGrace, so that its own time limit comes first.
  static constexpr std::chrono::milliseconds kGrace{1000};

  // Runs `body`; `call` and `key` are named in the report and must outlive it.
  template <class Body>
  auto watch(const char* call, const std::string& key, std::chrono::milliseconds limit,
             Body&& body) {
    Guard guard(*this, call, key, limit);
    return body();
  }
  template <class Body>
  auto watch(const char* call, const std::string& key, Body&& body) {
    return watch(call, key, limit_, std::forward<Body>(body));
  }

  std::chrono::milliseconds limit() const { return limit_; }
  const std::string& who() const { return who_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Guard {
    Guard(Watchdog& dog, const char* call, const std::string& key,
          std::chrono::milliseconds limit);
    ~Guard();
    Watchdog& dog;
  };

  void start();  // under mutex_
  void run();
  [[noreturn]] void bite();  // under mutex_

  const std::string who_;
  const std::chrono::milliseconds limit_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // The call under way; none when call_ is null.
  const char* call_ = nullptr;
  const std::string* key_ = nullptr;
  Clock::time_point begun_, deadline_;
  Clock::time_point sleeps_until_;
  bool ending_ = false;
  std::thread thread_;
  int thread_process_ = 0;
};

}  // namespace brigade::group
