// Schedules of the library keep no state: with the step in the checkpoint a run goes on
// with the right rates.
#include <gtest/gtest.h>

#include "brigade/optim.h"
#include "small_run.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::testing {
namespace {

constexpr int64_t kSavedAt = 7;
constexpr int64_t kLast = 24;

struct ScheduleCase {
  std::string name;
  optim::Schedule rate;
  std::string optimizer;
};

void train_by(const optim::Schedule& rate, SmallRun& run, int64_t last, bool sharded) {
  while (run.step() < last) {
    if (sharded) {
      rate.apply(run.sharded(), run.step());
    } else {
      rate.apply(run.optimizer(), run.step());
    }
    run.train_step();
  }
}

class ResumedSchedule : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(ResumedSchedule, GoesOnToTheBit) {
  const optim::Schedule& rate = GetParam().rate;
  const std::string& optimizer = GetParam().optimizer;
  EXPECT_NE(rate(0), rate(kSavedAt)) << "a run that counts from 0 would not be found";
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    const bool sharded = optimizer == "zero";
    SmallRun first(group, folder.path(), "int8", optimizer);
    train_by(rate, first, kSavedAt, sharded);
    first.save();
    train_by(rate, first, kLast, sharded);
    SmallRun second(group, folder.path(), "int8", optimizer);
    ASSERT_EQ(second.step(), kSavedAt);
    EXPECT_EQ(second.lr(), rate(kSavedAt - 1)) << "of the last step, until the next";
    train_by(rate, second, kLast, sharded);
    EXPECT_EQ(second.lr(), rate(kLast - 1));
    EXPECT_TRUE(at::equal(first.everything(), second.everything()));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, ResumedSchedule,
    ::testing::Values(
        ScheduleCase{"one_cycle", optim::one_cycle(0.05, kLast), "adam"},
        ScheduleCase{"one_cycle_of_zero", optim::one_cycle(0.05, kLast), "zero"},
        ScheduleCase{"cosine", optim::warm_up(4, optim::cosine(0.05, kLast - 4)), "sgd"},
        ScheduleCase{"step_decay", optim::step_decay(0.05, 3), "adamw"}),
    [](const auto& about) { return about.param.name; });

}  // namespace
}  // namespace brigade::testing
