// Which steps and ranks average parameters, and which options are refused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "brigade/local_sgd.h"
#include "local_sgd/warnings.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::refusal;
using testing::run_ranks;
using testing::Warnings;

// Sets the parameter to the rank before each step; its value afterwards shows which ranks
// took part.
float after_step(ModelAverager& averager) {
  at::Tensor parameter = at::full({5, 1}, averager.group().rank(), at::kFloat);
  averager.average_parameters({parameter});
  EXPECT_TRUE(parameter.eq(parameter[0]).all().item<bool>());
  return parameter[0].item<float>();
}

TEST(PeriodicModelAverager, AveragesAtEveryPeriodthStepFromTheWarmUpOn) {
  run_ranks(4, [](ProcessGroup group) {
    for (int64_t warmup : {0, 12, 13, 14, 15}) {
      PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = warmup});
      for (int64_t step = 0; step < 20; ++step) {
        const bool mean = step >= warmup && (step - warmup) % 4 == 0;
        EXPECT_EQ(after_step(averager), mean ? 1.5 : group.rank()) << "step " << step;
        EXPECT_EQ(averager.step(), step + 1);
      }
    }
  });
}

TEST(HierarchicalModelAverager, WithOneLevelEqualsThePeriodicOne) {
  run_ranks(4, [](ProcessGroup group) {
    for (int64_t warmup : {0, 8, 12}) {
      PeriodicModelAverager periodic(group, {.period = 4, .warmup_steps = warmup});
      HierarchicalModelAverager hierarchical(
          group, {.levels = {{.period = 4, .group_size = 4}}, .warmup_steps = warmup});
      for (int64_t step = 0; step < 20; ++step)
        EXPECT_EQ(after_step(hierarchical), after_step(periodic)) << "step " << step;
    }
  });
}

TEST(HierarchicalModelAverager, TakesTheLevelOfTheLargestPeriodThatDividesTheStep) {
  run_ranks(4, [](ProcessGroup group) {
    HierarchicalModelAverager averager(
        group, {.levels = {{2, 1}, {4, 2}, {8, 4}}, .warmup_steps = 10});
    const int rank = group.rank();
    for (int64_t step = 0; step < 25; ++step) {
      const float of_pair = rank < 2 ? 0.5 : 2.5;
      const float expected = step < 10       ? rank
                             : step % 8 == 0 ? 1.5
                             : step % 4 == 0 ? of_pair
                                             : rank;
      EXPECT_EQ(after_step(averager), expected) << "step " << step;
    }
  });
}

TEST(AverageParameters, GivesTheMeanInAnyShapeTypeAndLayoutAndTheSameBitsToAll) {
  run_ranks(3, [](ProcessGroup group) {
    at::manual_seed(group.rank());
    const at::Tensor leaf = at::randn({7, 3}).requires_grad_();
    std::vector<at::Tensor> parameters{
        leaf,
        at::randn({0}),
        at::randn({4, 5}).t(),
        at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
        at::randn({9}, at::kDouble),
        at::randn({33}).to(at::kBFloat16),
        at::full({3}, 60000.0, at::kHalf),  // a sum in fp16 would overflow
        at::randn({(1 << 22) + 3}),         // more than one message
        at::randn({11}),
        at::full({}, group.rank(), at::kFloat)};
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : parameters) {
      at::Tensor sum = parameter.detach().to(at::kDouble).contiguous();
      sum = sum.clone();
      group.all_reduce(sum);
      expected.push_back(sum / 3);
    }
    const int64_t bytes = average_parameters(parameters, group);
    int64_t elements = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor mean = parameters[i].detach();
      const double tolerance = mean.scalar_type() == at::kBFloat16 ? 1e-2 : 1e-6;
      EXPECT_TRUE(at::allclose(mean.to(at::kDouble), expected[i], tolerance, tolerance))
          << "parameter " << i;
      at::Tensor first = mean.contiguous().clone();
      group.broadcast(first, 0);
      EXPECT_TRUE(at::equal(first, mean)) << "replicas disagree about parameter " << i;
      elements += mean.numel() * (mean.scalar_type() == at::kDouble ? 8 : 4);
    }
    EXPECT_EQ(bytes, 2 * elements * 2 / 3);
    EXPECT_TRUE(leaf.requires_grad());
  });
}

TEST(ModelAverager, AveragesWhenToldToAndCountsBytes) {
  run_ranks(2, [](ProcessGroup group) {
    PeriodicModelAverager averager(group, {.period = 1000, .warmup_steps = 10});
    at::Tensor parameter = at::full({8}, group.rank(), at::kFloat);
    EXPECT_FALSE(averager.average_parameters({parameter}));
    EXPECT_EQ(averager.bytes_sent(), 0);
    averager.average_now({parameter});
    EXPECT_EQ(parameter[0].item<float>(), 0.5);
    EXPECT_EQ(averager.step(), 1);
    EXPECT_EQ(averager.bytes_sent(), 32);
    averager.set_step(10);
    EXPECT_TRUE(averager.average_parameters({parameter}));
  });
}

TEST(ModelAverager, RefusesBadOptionsAndSaysWhatIsRight) {
  run_ranks(4, [](ProcessGroup group) {
    const auto periodic = [&](int64_t period, int64_t warmup) {
      return refusal([&] {
        PeriodicModelAverager(group, {.period = period, .warmup_steps = warmup});
      });
    };
    EXPECT_EQ(periodic(0, 0),
              "PeriodicModelAverager: period is 0, but must be 1 or more: the number of "
              "steps from one mean to the next");
    EXPECT_EQ(periodic(2, -1), "warmup_steps is -1, but must be 0 or more");
    const auto levels = [&](std::vector<AveragingLevel> levels) {
      return refusal([&] { HierarchicalModelAverager(group, {.levels = levels}); });
    };
    EXPECT_NE(levels({}).find("levels is empty"), std::string::npos);
    EXPECT_NE(levels({{0, 4}}).find("levels[0].period is 0"), std::string::npos);
    EXPECT_NE(levels({{2, 3}, {4, 4}}).find("levels[0].group_size is 3, but must divide"),
              std::string::npos);
    EXPECT_NE(levels({{4, 2}, {2, 4}}).find("levels[1].period is 2, but must be more"),
              std::string::npos);
    EXPECT_NE(levels({{2, 4}, {4, 2}}).find("levels[1].group_size is 2, but must not"),
              std::string::npos);
    EXPECT_NE(
        levels({{2, 2}}).find("last group_size is 2, but must be the number of ranks"),
        std::string::npos);
    PeriodicModelAverager averager(group, {.period = 2});
    EXPECT_NE(refusal([&] { averager.set_step(-1); }).find("step is -1"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                averager.average_parameters({at::zeros({2}, at::kLong)});
              }).find("parameter 0 is Strided Long"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                averager.average_parameters({at::Tensor()});
              }).find("parameter 0 is undefined"),
              std::string::npos);
    EXPECT_NE(
        refusal([] { PeriodicModelAverager({}, {.period = 2}); }).find("group is empty"),
        std::string::npos);
  });
}

TEST(ModelAverager, WarnsAboutAPeriodOfOne) {
  run_ranks(2, [](ProcessGroup group) {
    Warnings warnings;
    PeriodicModelAverager(group, {.period = 2});
    EXPECT_EQ(warnings.text(), "");
    PeriodicModelAverager(group, {.period = 1});
    EXPECT_NE(warnings.text().find("PeriodicModelAverager: period is 1"),
              std::string::npos);
    HierarchicalModelAverager(group, {.levels = {{1, 2}}});
    EXPECT_NE(warnings.text().find("HierarchicalModelAverager: the largest period is 1"),
              std::string::npos);
  });
}

TEST(ModelAverager, RanksWithDifferentOptionsFindOut) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THROW(PeriodicModelAverager(group, {.period = 2 + group.rank()}), MismatchError);
  });
}

}  // namespace
}  // namespace brigade
