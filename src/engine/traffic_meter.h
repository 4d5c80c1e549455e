// What a hook cost, step by step.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "brigade/hook.h"

namespace brigade::engine {

// Not thread-safe.
class TrafficMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void reset() { *this = {}; }
  void begin_step();
  // A bucket was handed over; the last one's time is the end of the backward pass.
  void started(Clock::time_point at) { last_start_ = at; }
  // A bucket that started at `begin` is reduced, and has cost that much.
  void ended(const HookTraffic& cost, Clock::time_point begin, Clock::time_point end);
  void add_parts(const std::map<std::string, HookTraffic>& costs);
  HookStats stats() const;

 private:
  HookTraffic this_step() const;

  HookTraffic before_this_step_;
  HookTraffic step_cost_;
  std::vector<std::pair<Clock::time_point, Clock::time_point>> reductions_;  // of this step
  Clock::time_point last_start_;
  std::map<std::string, HookTraffic> parts_;
};

}  // namespace brigade::engine
