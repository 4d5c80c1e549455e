// The steps of a run, in bounded memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "brigade/report.h"

namespace brigade::report {

// Keeps every step of a short run. For a long one it keeps every second, fourth, eighth ...
// step, counted from the first, the newest, and those with an accuracy as long as these are
// few: never more than kMost points.
class History {
 public:
  static constexpr std::size_t kMost = 16384;

  void add(const StepPoint& point);
  bool empty() const { return count_ == 0; }
  // Returns the number of steps that were added.
  std::int64_t count() const { return count_; }
  const StepPoint& newest() const { return newest_; }
  // Returns the interval of kept steps; 1: all steps are there.
  std::int64_t every() const { return every_; }
  std::vector<StepPoint> points() const;

 private:
  bool keeps(const StepPoint& point) const;

  std::vector<StepPoint> points_;
  StepPoint newest_;
  std::int64_t first_step_ = 0;
  std::int64_t count_ = 0;
  std::int64_t every_ = 1;
  bool keeps_measured_ = true;
};

}  // namespace brigade::report
