#include "report/history.h"

#include <gtest/gtest.h>

#include <set>

namespace brigade::report {
namespace {

std::vector<StepPoint> after(std::int64_t steps, std::int64_t evaluate_every,
                             History& history) {
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepPoint point{.step = step, .bytes_sent = step * 10};
    if (evaluate_every > 0 && step % evaluate_every == 0) point.accuracy = 0.5;
    history.add(point);
    if (step % 512 == 0) {
      EXPECT_LE(history.points().size(), History::kMost);
    }
  }
  EXPECT_EQ(history.count(), steps);
  return history.points();
}

TEST(History, OfAShortRunKeepsEveryStep) {
  History history;
  EXPECT_EQ(after(1000, 50, history).size(), 1000U);
  EXPECT_EQ(history.every(), 1);
}

TEST(History, OfALongRunKeepsTheFirstTheLastWhatWasMeasuredAndEvenlySpacedSteps) {
  History history;
  const auto points = after(50'001, 1000, history);
  EXPECT_GT(points.size(), History::kMost / 4);
  EXPECT_EQ(history.every(), 4);
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, 50'001);
  std::set<std::int64_t> steps;
  for (const StepPoint& point : points) steps.insert(point.step);
  EXPECT_EQ(steps.size(), points.size());
  for (std::int64_t step = 1; step <= 50'000; ++step)
    ASSERT_EQ(steps.count(step) > 0, step % 4 == 1 || step % 1000 == 0) << step;
  Series series{.points = points};
  summarise(series);
  EXPECT_EQ(series.bytes_per_step, 10);
}

TEST(History, IsBoundedEvenIfEveryStepIsMeasured) {
  History history;
  EXPECT_LT(after(40'000, 1, history).size(), History::kMost);
}

}  // namespace
}  // namespace brigade::report
