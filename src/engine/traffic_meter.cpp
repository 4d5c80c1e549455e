#include "engine/traffic_meter.h"

#include <algorithm>

namespace brigade::engine {
namespace {

void add(HookTraffic& sum, const HookTraffic& part) {
  sum.steps += part.steps;
  sum.bytes_before += part.bytes_before;
  sum.bytes_sent += part.bytes_sent;
  sum.bytes_to_other_hosts += part.bytes_to_other_hosts;
  sum.collectives += part.collectives;
  sum.encode_seconds += part.encode_seconds;
  sum.wait_seconds += part.wait_seconds;
  sum.decode_seconds += part.decode_seconds;
  sum.reduce_seconds += part.reduce_seconds;
  sum.hidden_seconds += part.hidden_seconds;
}

}  // namespace

void TrafficMeter::begin_step() {
  add(before_this_step_, this_step());
  step_cost_ = {};
  step_cost_.steps = 1;
  reductions_.clear();
}

void TrafficMeter::ended(const HookTraffic& cost, Clock::time_point begin,
                         Clock::time_point end) {
  add(step_cost_, cost);
  reductions_.emplace_back(begin, end);
}

void TrafficMeter::add_parts(const std::map<std::string, HookTraffic>& costs) {
  for (const auto& [part, cost] : costs) add(parts_[part], cost);
}

HookTraffic TrafficMeter::this_step() const {
  HookTraffic traffic = step_cost_;
  for (const auto& [begin, end] : reductions_) {
    const auto seconds = [begin = begin](Clock::time_point until) {
      return std::max(0.0, std::chrono::duration<double>(until - begin).count());
    };
    traffic.reduce_seconds += seconds(end);
    traffic.hidden_seconds += seconds(std::min(end, last_start_));
  }
  return traffic;
}

HookStats TrafficMeter::stats() const {
  HookStats stats;
  stats.last_step = this_step();
  stats.total = before_this_step_;
  add(stats.total, stats.last_step);
  stats.parts = parts_;
  for (auto& [part, cost] : stats.parts) cost.steps = stats.total.steps;
  return stats;
}

}  // namespace brigade::engine
