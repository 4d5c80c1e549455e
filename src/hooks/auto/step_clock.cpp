#include "hooks/auto/step_clock.h"

#include <algorithm>
#include <span>

namespace brigade {
namespace {

double seconds(StepClock::Time from, StepClock::Time to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

double lower_quartile(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::ranges::nth_element(values, place);
  return *place;
}

}  // namespace

void StepClock::begin_step(Time now) {
  std::lock_guard lock(mutex_);
  if (running_) steps_.push_back(times_of(now));
  running_ = true;
  begun_ = now;
  buckets_.clear();
}

size_t StepClock::started(Time now) {
  std::lock_guard lock(mutex_);
  buckets_.push_back({now, now});
  return buckets_.size() - 1;
}

void StepClock::ended(size_t bucket, Time now) {
  std::lock_guard lock(mutex_);
  if (bucket < buckets_.size()) buckets_[bucket].end = now;
}

// Buckets are in the order of their start.
WindowTimes StepClock::times_of(Time next) const {
  WindowTimes times;
  times.step = seconds(begun_, next);
  if (buckets_.empty()) return times;
  Time until = buckets_.front().begin;
  for (const Interval& bucket : buckets_) {
    times.busy += seconds(std::max(bucket.begin, until), bucket.end);
    times.exposed_by_bucket.push_back(
        seconds(std::max({bucket.begin, until, buckets_.back().begin}), bucket.end));
    until = std::max(until, bucket.end);
  }
  times.exposed = seconds(buckets_.back().begin, until);
  return times;
}

std::optional<WindowTimes> StepClock::window(size_t skip) const {
  std::lock_guard lock(mutex_);
  if (steps_.size() <= skip) return std::nullopt;
  const std::span<const WindowTimes> steps = std::span(steps_).subspan(skip);
  const auto of = [&](double WindowTimes::*field) {
    std::vector<double> values;
    for (const WindowTimes& step : steps) values.push_back(step.*field);
    return lower_quartile(std::move(values));
  };
  WindowTimes window{.step = of(&WindowTimes::step),
                     .exposed = of(&WindowTimes::exposed),
                     .busy = of(&WindowTimes::busy)};
  for (size_t bucket = 0; bucket < steps[0].exposed_by_bucket.size(); ++bucket) {
    std::vector<double> values;
    for (const WindowTimes& step : steps) {
      // Buckets may have been rebuilt in between.
      if (bucket < step.exposed_by_bucket.size())
        values.push_back(step.exposed_by_bucket[bucket]);
    }
    window.exposed_by_bucket.push_back(lower_quartile(std::move(values)));
  }
  return window;
}

void StepClock::begin_window() {
  std::lock_guard lock(mutex_);
  running_ = false;
  steps_.clear();
}

}  // namespace brigade
