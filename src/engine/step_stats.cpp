#include "engine/step_stats.h"

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

double seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

// ---- BucketCost -------------------------------------------------------------------------

template <class Change>
void BucketCost::change(const std::string& label, Change change) {
  std::lock_guard lock(mutex_);
  change(cost_);
  if (!label.empty()) change(by_label_[label]);
}

void BucketCost::stretch_began(Clock::time_point begin) {
  std::lock_guard lock(mutex_);
  stretch_began_ = begin;
}

void BucketCost::stretch_ended(Clock::time_point begin) {
  const double took = seconds(begin, Clock::now());
  std::lock_guard lock(mutex_);
  cost_.encode_seconds += took;
}

void BucketCost::issued(const std::string& label, int64_t bytes_sent,
                        int64_t bytes_to_other_hosts) {
  change(label, [&](HookTraffic& cost) {
    ++cost.collectives;
    cost.bytes_sent += bytes_sent;
    cost.bytes_to_other_hosts += bytes_to_other_hosts;
  });
}

void BucketCost::waited(const std::string& label, Clock::time_point since) {
  const double took = seconds(since, Clock::now());
  change(label, [&](HookTraffic& cost) { cost.wait_seconds += took; });
}

void BucketCost::covers(const std::string& label, int64_t bytes) {
  std::lock_guard lock(mutex_);
  by_label_[label].bytes_before += bytes;
}

void BucketCost::was_under_way(const std::string& label, Clock::time_point since) {
  const double took = seconds(since, Clock::now());
  std::lock_guard lock(mutex_);
  by_label_[label].reduce_seconds += took;
}

HookTraffic BucketCost::total(Clock::time_point end, bool in_one_stretch) const {
  std::lock_guard lock(mutex_);
  HookTraffic total = cost_;
  total.bytes_before = bytes_;
  const double last_stretch = seconds(stretch_began_, end);
  if (in_one_stretch) {
    total.encode_seconds = last_stretch - total.wait_seconds;
  } else {
    total.decode_seconds = last_stretch;
  }
  return total;
}

std::map<std::string, HookTraffic> BucketCost::by_label() const {
  std::lock_guard lock(mutex_);
  return by_label_;
}

// ---- StepStats --------------------------------------------------------------------------

void StepStats::begin_step() {
  add(before_this_step_, this_step());
  step_cost_ = {};
  step_cost_.steps = 1;
  reductions_.clear();
}

void StepStats::ended(const BucketCost& cost, Clock::time_point begin,
                      Clock::time_point end, bool in_one_stretch) {
  add(step_cost_, cost.total(end, in_one_stretch));
  reductions_.emplace_back(begin, end);
  for (const auto& [label, of_label] : cost.by_label()) add(by_label_[label], of_label);
}

HookTraffic StepStats::this_step() const {
  HookTraffic traffic = step_cost_;
  for (const auto& [begin, end] : reductions_) {
    traffic.reduce_seconds += std::max(0.0, seconds(begin, end));
    traffic.hidden_seconds += std::max(0.0, seconds(begin, std::min(end, last_start_)));
  }
  return traffic;
}

HookStats StepStats::stats() const {
  HookStats stats;
  stats.last_step = this_step();
  stats.total = before_this_step_;
  add(stats.total, stats.last_step);
  stats.parts = by_label_;
  for (auto& [label, cost] : stats.parts) cost.steps = stats.total.steps;
  return stats;
}

}  // namespace brigade::engine
