// What every hook of the table promises, stated once and run for every row.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

struct Case {
  std::string spec;
  double tolerance;  // of one step; negative: none is promised
};

// Every row, PowerSGD compressing from the first step, and compositions.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    const bool low_rank = !entry.options.empty();
    list.push_back(
        {low_rank ? name + ":start=0,rank=2" : name, low_rank ? -1 : entry.tolerance});
  }
  list.push_back({"powersgd:start=0,batch=1,warm=0", -1});
  list.push_back({"powersgd:start=0,rank=3,ef=0", -1});
  list.push_back({"powersgd", 1e-5});  // not started yet
  list.push_back({"fp16+allreduce", 2e-3});
  list.push_back({"bf16+powersgd:start=0", -1});
  list.push_back({"fp16+int8", 1.5e-2});
  return list;
}

// Rows that average: all but noop.
std::vector<Case> averaging_cases() {
  std::vector<Case> list = cases();
  std::erase_if(list, [](const Case& c) { return c.spec == "noop"; });
  return list;
}

void expect_same_on_all_ranks(const ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor theirs = mine.contiguous().clone();
  group.broadcast(theirs, 0);
  const auto bits = [](const at::Tensor& t) {
    return t.contiguous().view({-1}).view(at::kByte);
  };
  if (mine.numel()) {
    EXPECT_TRUE(at::equal(bits(mine), bits(theirs))) << "replicas disagree";
  }
}

void expect_step_in_order(Rig& rig, const Case& c, int64_t step) {
  SCOPED_TRACE("step " + std::to_string(step));
  const std::vector<at::Tensor> gradients = rig.train(step);
  for (const at::Tensor& gradient : gradients) {
    expect_same_on_all_ranks(rig.group, gradient);
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  }
  const double coarse = at::kHalf == rig.dtype       ? 2e-3
                        : at::kBFloat16 == rig.dtype ? 1.6e-2
                                                     : 0;
  if (c.tolerance >= 0) {
    EXPECT_LE(rig.error(gradients, step), std::max(c.tolerance, coarse));
  }
}

class HookContract : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HookContract, ::testing::Values(1, 2, 3, 4));

TEST_P(HookContract, AveragesAndAgreesOnEveryRankWithAnyNumberOfBuckets) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (const Case& c : averaging_cases()) {
                for (int64_t buckets : {1, 2, 5, 12}) {
                  SCOPED_TRACE(c.spec + " with " + std::to_string(buckets) + " buckets");
                  Shapes shapes;
                  for (int64_t index = 0; index < buckets; ++index)
                    shapes.push_back({17 + index, 23});
                  Rig rig(group, c.spec, shapes);
                  for (int64_t step = 0; step < 3; ++step)
                    expect_step_in_order(rig, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, TakesEverySizeAndShape) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              const Shapes shapes{{1},       {17},   {0},      {4097},
                                  {3, 5, 7}, {1, 1}, {64, 64}, {300, 211}};
              for (const Case& c : averaging_cases()) {
                for (double cap : {testing::kOneBucketEach, 25.0}) {
                  SCOPED_TRACE(c.spec);
                  Rig rig(group, c.spec, shapes, at::kFloat, {.bucket_cap_mb = cap});
                  for (int64_t step = 0; step < 3; ++step)
                    expect_step_in_order(rig, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, TakesEveryFloatingType) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
                for (const Case& c : averaging_cases()) {
                  SCOPED_TRACE(c.spec + " on " + toString(dtype));
                  Rig rig(group, c.spec, {{33, 31}, {257}}, dtype);
                  for (int64_t step = 0; step < 3; ++step)
                    expect_step_in_order(rig, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, ShowsWhatIsNotFiniteToAllRanksAndRecoversInTheNextStep) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (double bad : {std::nan(""), HUGE_VAL}) {
                for (const Case& c : averaging_cases()) {
                  SCOPED_TRACE(c.spec);
                  const Shapes shapes{{40, 30}, {700}};
                  Rig rig(group, c.spec, shapes);
                  expect_step_in_order(rig, c, 0);
                  std::vector<at::Tensor> poisoned = rig.inputs(1);
                  if (group.rank() == group.size() - 1) {
                    for (at::Tensor& input : poisoned) input.view({-1})[5] = bad;
                  }
                  for (const at::Tensor& gradient : rig.train_on(poisoned)) {
                    EXPECT_FALSE(at::isfinite(gradient).all().item<bool>())
                        << "hidden from a rank";
                  }
                  for (int64_t step = 2; step < 5; ++step)
                    expect_step_in_order(rig, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, StandsLargeAndSmallNumbers) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (const Case& c : averaging_cases()) {
                for (double scale : {0.0, 1e-42, 1e-30, 1e4}) {
                  SCOPED_TRACE(c.spec + " at " + std::to_string(scale));
                  Rig rig(group, c.spec, {{40, 30}, {700}});
                  std::vector<at::Tensor> inputs = rig.inputs(0);
                  for (at::Tensor& input : inputs) input.mul_(scale);
                  for (int repeat = 0; repeat < 2; ++repeat) {
                    for (const at::Tensor& gradient : rig.train_on(inputs)) {
                      expect_same_on_all_ranks(group, gradient);
                      EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
                      if (scale == 0.0)
                        EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
                    }
                  }
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, WorksWithBucketViewsNoSyncUnusedParametersAndStaticGraphs) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              const Shapes shapes{{17, 23}, {5}, {30, 30}};
              for (const Case& c : averaging_cases()) {
                SCOPED_TRACE(c.spec);
                Rig plain(group, c.spec, shapes);
                Rig views(group, c.spec, shapes, at::kFloat,
                          {.bucket_cap_mb = testing::kOneBucketEach,
                           .gradient_as_bucket_view = true});
                Rig unused(group, c.spec, shapes, at::kFloat,
                           {.find_unused_parameters = true,
                            .bucket_cap_mb = testing::kOneBucketEach});
                Rig fixed(group, c.spec, shapes, at::kFloat,
                          {.static_graph = true, .bucket_cap_mb = testing::kOneBucketEach});
                for (int64_t step = 0; step < 3; ++step) {
                  const auto expected = plain.train(step);
                  const auto with_views = views.train(step);
                  const auto with_static = fixed.train(step);
                  std::vector<at::Tensor> some = unused.inputs(step);
                  some[1] = at::Tensor();
                  const auto with_unused = unused.train_on(some);
                  for (size_t index = 0; index < shapes.size(); ++index) {
                    EXPECT_TRUE(at::equal(with_views[index], expected[index]));
                  }
                  if (c.tolerance >= 0) {
                    EXPECT_LE(fixed.error(with_static, step), c.tolerance);
                    EXPECT_LE(unused.error(with_unused, step), c.tolerance);
                  }
                }
                // Accumulated without synchronising, then sent: the mean of the sum.
                plain.ddp->zero_grad();
                {
                  auto guard = plain.ddp->no_sync();
                  plain.ddp->forward(plain.inputs(7)).backward();
                }
                plain.ddp->forward(plain.inputs(8)).backward();
                std::vector<at::Tensor> second;
                for (size_t index = 0; index < shapes.size(); ++index) {
                  const at::Tensor gradient = plain.bag->parameters_in_order[index].grad();
                  expect_same_on_all_ranks(group, gradient);
                  second.push_back(gradient - plain.mean(7, index));
                }
                if (c.tolerance >= 0) {
        EXPECT_LE(plain.error(second, 8), 2 * c.tolerance);
      }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, ACheckpointInTheMiddleChangesNoBit) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              const Shapes shapes{{17, 23}, {5}, {30, 30}, {600}};
              for (const Case& c : averaging_cases()) {
                SCOPED_TRACE(c.spec);
                Rig whole(group, c.spec, shapes);
                Rig first(group, c.spec, shapes);
                for (int64_t step = 0; step < 3; ++step) {
                  whole.train(step);
                  first.train(step);
                }
                const HookState state = first.ddp->hook()->state();
                // As a resumed program would: the hook's state, and the buckets as they
                // were.
                DdpOptions as_before{.bucket_cap_mb = testing::kOneBucketEach};
                as_before.first_buckets = first.ddp->logging_data().bucket_parameters;
                Rig second(group, c.spec, shapes, at::kFloat, as_before);
                second.ddp->hook()->load_state(state);
                for (int64_t step = 3; step < 6; ++step) {
                  const auto expected = whole.train(step), resumed = second.train(step);
                  for (size_t index = 0; index < shapes.size(); ++index) {
                    EXPECT_TRUE(at::equal(resumed[index], expected[index]))
                        << "step " << step << ", parameter " << index;
                  }
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, HooksCanBeExchangedWhileTraining) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{17, 23}, {5}, {600}});
    int64_t step = 0;
    expect_step_in_order(rig, {"", 1e-5}, step++);  // none
    for (const Case& c : averaging_cases()) {
      SCOPED_TRACE(c.spec);
      rig.ddp->set_hook(make_hook(c.spec));
      expect_step_in_order(rig, c, step++);
      expect_step_in_order(rig, c, step++);
      EXPECT_EQ(rig.ddp->hook_stats().total.steps, 2);
    }
    rig.ddp->set_hook(nullptr);
    expect_step_in_order(rig, {"", 1e-5}, step++);
  });
}

TEST_P(HookContract, NoopGivesEveryRankItsOwnGradient) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "noop", {{17, 23}, {5}});
    const auto inputs = rig.inputs(0), gradients = rig.train(0);
    for (size_t index = 0; index < inputs.size(); ++index)
      EXPECT_TRUE(at::equal(inputs[index], gradients[index]));
    EXPECT_EQ(rig.ddp->hook_stats().total.bytes_sent, 0);
  });
}

// What a rank sends for n values, from the hooks' cards in the docs.
TEST_P(HookContract, SendsWhatItsFormulaSays) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int64_t n = 12 * 512 * 20, w = group.size();
    const auto bytes_sent = [&](const std::string& spec, const Shapes& shapes) {
      Rig rig(group, spec, shapes);
      rig.train(0);
      return rig.ddp->hook_stats().last_step.bytes_sent;
    };
    const Shapes flat{{n}};
    EXPECT_EQ(bytes_sent("allreduce", flat), 2 * 4 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("fp16", flat), 2 * 2 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("bf16", flat), 2 * 2 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("int8", flat), 2 * (n + 4 * n / 256) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("quantize_per_channel", flat),
              2 * (n + 8 * n / 512) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("quantize_per_tensor", flat), 2 * (n + 8 * w) * (w - 1) / w);
    EXPECT_EQ(
        bytes_sent("powersgd:start=0,rank=2", {{60, 120}}),
        w == 1 ? 0 : 2 * (4 * 60 * 2) * (w - 1) / w + 2 * (4 * 120 * 2) * (w - 1) / w);
  });
}

}  // namespace
}  // namespace brigade
