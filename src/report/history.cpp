#include "report/history.h"

#include <algorithm>

namespace brigade::report {

bool History::keeps(const StepPoint& point) const {
  return (point.step - first_step_) % every_ == 0 || (keeps_measured_ && point.accuracy);
}

void History::add(const StepPoint& point) {
  if (count_++ == 0) first_step_ = point.step;
  newest_ = point;
  if (!keeps(point)) return;
  points_.push_back(point);
  while (points_.size() >= kMost) {
    const auto measured = std::ranges::count_if(
        points_, [](const StepPoint& each) { return each.accuracy.has_value(); });
    keeps_measured_ = keeps_measured_ && measured < static_cast<std::int64_t>(kMost / 2);
    every_ *= 2;
    std::erase_if(points_, [&](const StepPoint& each) { return !keeps(each); });
  }
}

std::vector<StepPoint> History::points() const {
  std::vector<StepPoint> all = points_;
  if (count_ > 0 && (all.empty() || all.back().step != newest_.step))
    all.push_back(newest_);
  return all;
}

}  // namespace brigade::report
