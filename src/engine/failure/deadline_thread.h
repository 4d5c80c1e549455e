// Sees to it that no bucket takes longer than it may.
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

// Looks at the oldest bucket that is under way, a few times a second, from a thread of its
// own. Thread-safe.
class DeadlineThread {
 public:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    Clock::time_point started;
    std::string description;
    std::optional<base::Cause> error = {};  // it has failed, and nobody else will say so
  };
  // Both are called by the watcher's thread only. `oldest` gives nothing when nothing is
  // under way. `fail_all` fails all that is.
  using Oldest = std::function<std::optional<Watched>()>;
  using FailAll = std::function<void(const base::Cause& cause)>;
  DeadlineThread(ProcessGroup group, FailureStore& failures, Oldest oldest,
                 FailAll fail_all);
  ~DeadlineThread() { stop(); }
  DeadlineThread(const DeadlineThread&) = delete;
  DeadlineThread& operator=(const DeadlineThread&) = delete;

  // Starts the thread, unless it runs or was stopped.
  void start();
  // Something has failed: the thread need not wait until it looks next.
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
