// Records trace events while tracing is on.
#pragma once
#include <c10/core/Event.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "brigade/hook.h"

namespace brigade::engine {

// A point in a device's time, to be read later.
using DevicePoint = std::shared_ptr<c10::Event>;

// Thread-safe. Costs one read of a flag while it is off.
class Trace {
 public:
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void record(bool on) { recording_ = on; }
  void add(const TraceEvent& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  // The present point of the device's current stream. The first call, and the first after
  // move_to(), waits for the device, to compare clocks; others do not wait.
  DevicePoint point(c10::Device device);
  // Adds an event of the device, from one point to another.
  void add(const TraceEvent& event, DevicePoint begin, DevicePoint end);
  // Waits for the device if it has events, and throws its error; then these events are
  // lost.
  void move_to(std::vector<TraceEvent>& all);

 private:
  using Clock = std::chrono::steady_clock;
  struct OnDevice {
    TraceEvent event;
    DevicePoint begin, end;
  };
  void compare_clocks(c10::Device device);
  Clock::time_point time_of(const c10::Event& zero, const c10::Event& point) const;

  std::atomic<bool> recording_ = false;
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::vector<OnDevice> on_device_;
  DevicePoint zero_;  // the point at which the device's clock was compared with the host's,
  Clock::time_point zero_time_;  // and the host's time there
};

}  // namespace brigade::engine
