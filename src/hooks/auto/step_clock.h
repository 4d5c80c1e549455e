// Measures how long steps and their reductions take.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "hooks/auto/tuner.h"

namespace brigade {

// Thread-safe.
class StepClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Called when a step's first bucket comes; the step before is over.
  void begin_step(Time now);
  // Called when a bucket starts; returns its number, for ended().
  size_t started(Time now);
  void ended(size_t bucket, Time now);

  // Returns lower quartiles over the steps that are over, except the first `skip`; none if
  // there is no such step.
  std::optional<WindowTimes> window(size_t skip) const;
  // Forgets the finished steps and the one under way.
  void begin_window();

 private:
  struct Interval {
    Time begin, end;
  };
  WindowTimes times_of(Time next) const;

  mutable std::mutex mutex_;
  bool running_ = false;
  Time begun_;
  std::vector<Interval> buckets_;  // of the step under way
  std::vector<WindowTimes> steps_;
};

}  // namespace brigade
