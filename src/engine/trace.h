// Notes events while somebody wants them.
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "brigade/trace.h"

namespace brigade::engine {

// Thread-safe. Costs one read of a flag while it is off.
class Trace {
 public:
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void record(bool on) { recording_ = on; }
  void add(const TraceEvent& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  void move_to(std::vector<TraceEvent>& all) {
    std::lock_guard lock(mutex_);
    all.insert(all.end(), events_.begin(), events_.end());
    events_.clear();
  }

 private:
  std::atomic<bool> recording_ = false;
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

}  // namespace brigade::engine
