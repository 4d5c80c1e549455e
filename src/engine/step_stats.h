// Counts a hook's bytes and seconds, by bucket and by step. They are counted nowhere else.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "brigade/hook.h"

namespace brigade::engine {

using Clock = std::chrono::steady_clock;

// The cost of one bucket so far. Thread-safe: its lanes count at the same time. Traffic
// with a label (TrafficLabel) counts for the bucket and for the label; an empty label is
// none.
class BucketCost {
 public:
  // `bytes`: the size of the bucket before the hook.
  BucketCost(int64_t bytes, Clock::time_point started)
      : bytes_(bytes), stretch_began_(started) {}

  // Count a stage of the hook's code: stretch_began() is called before it, stretch_ended()
  // after it, except after the bucket's last one.
  void stretch_began(Clock::time_point begin);
  void stretch_ended(Clock::time_point begin);
  // Counts an issued collective and the bytes that this rank sends in it.
  void issued(const std::string& label, int64_t bytes_sent, int64_t bytes_to_other_hosts);
  // The collective that was issued at `since` is complete.
  void waited(const std::string& label, Clock::time_point since);
  // These count gradients of this many bytes, and the time since `since`, for the label.
  void covers(const std::string& label, int64_t bytes);
  void was_under_way(const std::string& label, Clock::time_point since);

  // The cost of a bucket that ended at `end`. `in_one_stretch`: the hook ran from beginning
  // to end on one thread.
  HookTraffic total(Clock::time_point end, bool in_one_stretch) const;
  std::map<std::string, HookTraffic> by_label() const;

 private:
  template <class Change>
  void change(const std::string& label, Change change);

  const int64_t bytes_;
  mutable std::mutex mutex_;
  HookTraffic cost_;
  std::map<std::string, HookTraffic> by_label_;
  Clock::time_point stretch_began_;
};

// Sums the costs of buckets. Not thread-safe.
class StepStats {
 public:
  void reset() { *this = {}; }
  void begin_step();
  // A bucket was passed to the hook; the last one's time is the end of the backward pass.
  void started(Clock::time_point at) { last_start_ = at; }
  // A bucket that started at `begin` is reduced.
  void ended(const BucketCost& cost, Clock::time_point begin, Clock::time_point end,
             bool in_one_stretch);
  HookStats stats() const;

 private:
  HookTraffic this_step() const;

  HookTraffic before_this_step_;
  HookTraffic step_cost_;
  std::vector<std::pair<Clock::time_point, Clock::time_point>> reductions_;  // this step's
  Clock::time_point last_start_;
  std::map<std::string, HookTraffic> by_label_;
};

}  // namespace brigade::engine
