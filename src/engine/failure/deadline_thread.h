// Enforces the time limit of buckets.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/failure/failure_store.h"

namespace brigade::engine {

// Checks the oldest bucket under way, a few times a second, on a thread of its own.
// Thread-safe.
class DeadlineThread {
 public:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    Clock::time_point started;
    std::string description;
    std::optional<base::Cause> error =
        {};  // it has failed, and only this thread reports it
  };
  // Only the DeadlineThread's thread calls these. `oldest` returns none if no bucket is
  // under way. `fail_all` fails all buckets under way.
  using Oldest = std::function<std::optional<Watched>()>;
  using FailAll = std::function<void(const base::Cause& cause)>;
  DeadlineThread(ProcessGroup group, FailureStore& failures, Oldest oldest,
                 FailAll fail_all);
  ~DeadlineThread() { stop(); }
  DeadlineThread(const DeadlineThread&) = delete;
  DeadlineThread& operator=(const DeadlineThread&) = delete;

  // Starts the thread, unless it is running or was stopped.
  void start();
  // Makes the thread check now, after a failure.
  void look_now();
  // Ends the thread and waits for it.
  void stop();

 private:
  void watch();
  void check_peers();

  const ProcessGroup group_;
  FailureStore& failures_;
  const Oldest oldest_;
  const FailAll fail_all_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool look_now_ = false;
  std::thread thread_;
};

}  // namespace brigade::engine
