// The promises of every hook of the table, stated once and run for every row.
#include "hooks/contract.h"

#include "support/ranks.h"

namespace brigade {
namespace {

using testing::all_finite;
using testing::averaging_cases;
using testing::cases;
using testing::expect_same_on_all_ranks;
using testing::Gradients;
using testing::Rig;
using testing::run_ranks;
using testing::set_hook;
using testing::Shapes;
using testing::Structure;

using Case = testing::HookCase;

// For parameters that share a bucket in an unknown order.
Gradients in_one_bucket(Gradients kind) {
  return kind.structure == Structure::square ? Gradients{Structure::constant} : kind;
}

// The error that rounding to a half type adds to the hook's own.
double coarseness(at::ScalarType dtype) {
  return dtype == at::kHalf ? 2e-3 : dtype == at::kBFloat16 ? 1.6e-2 : 0;
}

bool quantizes(const Case& c) { return c.spec.rfind("quantize_per_", 0) == 0; }

// The number of values that share a scale, in a bucket of n.
int64_t quantizer_block(const Case& c, int64_t n, int ranks) {
  if (c.spec == "quantize_per_channel") return 512;
  return ((n + ranks - 1) / ranks + 63) / 64 * 64;  // a rank's chunk
}

// A quantizer is off by at most half a step in each rank's values, and by half a step in
// their mean. The range of the mean is at most the mean of the ranges, so the error is at
// most the mean step: range / 255. This checks value by value, so that neither a small
// layer nor a small block can hide in a large one.
void expect_within_steps(const Rig& rig, const Case& c,
                         const std::vector<at::Tensor>& gradients, int64_t step) {
  const auto whole_bucket = [&](const std::vector<std::string>& names, const auto& part) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : names)
      parts.push_back(part(std::stoul(name.substr(1))).to(at::kDouble).flatten());
    return at::cat(parts);
  };
  for (const auto& names : rig.ddp->logging_data().bucket_parameters) {
    const at::Tensor result =
        whole_bucket(names, [&](size_t index) { return gradients[index]; });
    const at::Tensor mean =
        whole_bucket(names, [&](size_t index) { return rig.mean(step, index); });
    const int64_t n = result.numel();
    if (n == 0) continue;
    const int64_t block = quantizer_block(c, n, rig.group.size());
    const int64_t blocks = (n + block - 1) / block;
    at::Tensor range = at::zeros({blocks}, at::kDouble);
    for (int rank = 0; rank < rig.group.size(); ++rank) {
      const at::Tensor values = whole_bucket(names, [&](size_t index) {
        return testing::coefficient(rig.shapes[index], rig.dtype, rank, step, index);
      });
      // Rows are padded with zeros, which every range includes.
      const at::Tensor rows =
          at::constant_pad_nd(values, {0, blocks * block - n}).view({blocks, block});
      range += rows.amax(1).clamp_min(0) - rows.amin(1).clamp_max(0);
    }
    const at::Tensor steps =
        (range / (255 * rig.group.size())).repeat_interleave(block).narrow(0, 0, n);
    const at::Tensor bound = steps * 1.001 + mean.abs() * (coarseness(rig.dtype) + 1e-6);
    const at::Tensor excess = (result - mean).abs() / bound.clamp_min(1e-300);
    EXPECT_LE(excess.max().item<double>(), 1.0) << "in steps of the quantizer";
  }
}

void expect_step_in_order(Rig& rig, const Case& c, int64_t step) {
  SCOPED_TRACE("step " + std::to_string(step));
  const std::vector<at::Tensor> gradients = rig.train(step);
  expect_same_on_all_ranks(rig.group, gradients);
  EXPECT_TRUE(all_finite(gradients));
  if (quantizes(c)) {
    expect_within_steps(rig, c, gradients, step);
  } else {
    EXPECT_LE(rig.error(gradients, step), std::max(c.tolerance, coarseness(rig.dtype)));
  }
}

// Bounds the sum over 16 steps: with a fifth of the values sent, a few steps' worth remain.
constexpr double kLeftOver = 0.4;

class HookContract : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HookContract, ::testing::Values(1, 2, 3, 4));

TEST_P(HookContract, AveragesAndAgreesOnEveryRankWithAnyNumberOfBuckets) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (int64_t buckets : {1, 2, 5, 12}) {
                Shapes shapes;
                for (int64_t index = 0; index < buckets; ++index)
                  shapes.push_back({17 + index, 23});
                Rig rig(group, "", shapes);
                for (const Case& c : averaging_cases()) {
                  SCOPED_TRACE(c.spec + " with " + std::to_string(buckets) + " buckets");
                  set_hook(rig, c);
                  for (int64_t step = 0; step < 3; ++step)
                    expect_step_in_order(rig, c, step);
                  const auto gradients = rig.train(3);
                  EXPECT_LE(rig.error(gradients, 3), c.tolerance);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

// With constant gradients, what one step leaves out comes in another, so the sum of the
// results follows the sum of the means. Zeros would be off by 1.
TEST_P(HookContract, WhatAStepOwesComesInLaterOnes) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{17, 23}, {5}, {600}, {30, 40}});
    constexpr int64_t kSteps = 16;
    for (const Case& c : averaging_cases()) {
      if (c.tolerance < testing::kOwing) continue;
      SCOPED_TRACE(c.spec);
      set_hook(rig, c);
      double off = 0, size = 0;
      std::vector<at::Tensor> sums(rig.shapes.size());
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto gradients = rig.train(0);
        for (size_t index = 0; index < sums.size(); ++index) {
          const at::Tensor wide = gradients[index].to(at::kDouble);
          sums[index] = step == 0 ? wide : sums[index] + wide;
        }
      }
      for (size_t index = 0; index < sums.size(); ++index) {
        const at::Tensor expected = rig.mean(0, index) * kSteps;
        off += (sums[index] - expected).square().sum().item<double>();
        size += expected.square().sum().item<double>();
      }
      EXPECT_LE(std::sqrt(off / size), kLeftOver);
    }
  });
}

TEST_P(HookContract, TakesEverySizeAndShape) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              const Shapes shapes{{1},       {17},   {0},      {4097},
                                  {3, 5, 7}, {1, 1}, {64, 64}, {150, 111}};
              Rig apart(group, "", shapes);
              for (const Case& c : averaging_cases()) {
                SCOPED_TRACE(c.spec);
                // All are in one new bucket, which goes through the rebuilding of buckets.
                Rig together(group, c.spec, shapes, at::kFloat, {.bucket_cap_mb = 25.0});
                together.kind = in_one_bucket(c.kind);
                set_hook(apart, c);
                for (int64_t step = 0; step < 3; ++step) {
                  expect_step_in_order(apart, c, step);
                  expect_step_in_order(together, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, TakesEveryFloatingType) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
                Rig rig(group, "", {{33, 31}, {257}}, dtype);
                for (const Case& c : averaging_cases()) {
                  SCOPED_TRACE(c.spec + " on " + toString(dtype));
                  set_hook(rig, c);
                  for (int64_t step = 0; step < 3; ++step)
                    expect_step_in_order(rig, c, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

// The error of values that are not finite is not fed back: with gradients of low rank one
// value of 1200 is then wrong.
TEST_P(HookContract, ShowsWhatIsNotFiniteToAllRanksAndRecoversInTheNextStep) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              Rig rig(group, "", {{40, 30}, {700}});
              for (double bad : {std::nan(""), HUGE_VAL}) {
                for (const Case& c : averaging_cases()) {
                  SCOPED_TRACE(c.spec);
                  set_hook(rig, c);
                  expect_step_in_order(rig, c, 0);
                  std::vector<at::Tensor> poisoned = rig.inputs(1);
                  if (group.rank() == group.size() - 1) {
                    for (at::Tensor& input : poisoned) input.view({-1})[5] = bad;
                  }
                  for (const at::Tensor& gradient : rig.train_on(poisoned)) {
                    EXPECT_FALSE(at::isfinite(gradient).all().item<bool>())
                        << "hidden from a rank";
                  }
                  Case after = c;
                  if (c.kind.structure != Structure::any)
                    after.tolerance = std::max(c.tolerance, 0.1);
                  for (int64_t step = 2; step < 5; ++step)
                    expect_step_in_order(rig, after, step);
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, StandsLargeAndSmallNumbers) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              Rig rig(group, "", {{40, 30}, {700}});
              for (const Case& c : averaging_cases()) {
                for (double scale : {0.0, 1e-42, 1e-30, 1e4}) {
                  SCOPED_TRACE(c.spec + " at " + std::to_string(scale));
                  rig.ddp->set_hook(make_hook(c.spec));
                  std::vector<at::Tensor> inputs = rig.inputs(0);
                  for (at::Tensor& input : inputs) input.mul_(scale);
                  for (int repeat = 0; repeat < 2; ++repeat) {
                    const std::vector<at::Tensor> gradients = rig.train_on(inputs);
                    expect_same_on_all_ranks(group, gradients);
                    EXPECT_TRUE(all_finite(gradients));
                    if (scale != 0.0) continue;
                    for (const at::Tensor& gradient : gradients)
                      EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
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
              Rig plain(group, "", shapes);
              Rig views(group, "", shapes, at::kFloat,
                        {.bucket_cap_mb = testing::kOneBucketEach,
                         .gradient_as_bucket_view = true});
              Rig unused(group, "", shapes, at::kFloat,
                         {.find_unused_parameters = true,
                          .bucket_cap_mb = testing::kOneBucketEach});
              for (const Case& c : averaging_cases()) {
                SCOPED_TRACE(c.spec);
                for (Rig* rig : {&plain, &views, &unused}) set_hook(*rig, c);
                // A static graph's first pass is special, so each has a fresh model.
                Rig fixed(group, c.spec, shapes, at::kFloat,
                          {.static_graph = true, .bucket_cap_mb = testing::kOneBucketEach});
                fixed.kind = in_one_bucket(c.kind);  // as a static graph's are
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
                  EXPECT_LE(fixed.error(with_static, step), c.tolerance);
                  EXPECT_LE(unused.error(with_unused, step), c.tolerance);
                }
                // Gradients accumulate without synchronising, then their sum is averaged.
                plain.ddp->zero_grad();
                {
                  auto guard = plain.ddp->no_sync();
                  plain.ddp->forward(plain.inputs(7)).backward();
                }
                plain.ddp->forward(plain.inputs(8)).backward();
                std::vector<at::Tensor> gradients, second;
                for (size_t index = 0; index < shapes.size(); ++index) {
                  gradients.push_back(plain.bag->parameters_in_order[index].grad());
                  second.push_back(gradients.back() - plain.mean(7, index));
                }
                expect_same_on_all_ranks(group, gradients);
                EXPECT_LE(plain.error(second, 8), 2 * c.tolerance);
              }
            },
            {.wall = std::chrono::minutes(2)});
}

TEST_P(HookContract, ACheckpointInTheMiddleChangesNoBit) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              const Shapes shapes{{17, 23}, {5}, {30, 30}, {600}};
              Rig whole(group, "", shapes);
              for (const Case& c : averaging_cases()) {
                SCOPED_TRACE(c.spec);
                whole.ddp->set_hook(make_hook(c.spec));
                for (int64_t step = 0; step < 3; ++step) whole.train(step);
                const HookState state = whole.ddp->hook()->state();
                // A resumed program has the hook's state, and the same buckets.
                DdpOptions as_before{.bucket_cap_mb = testing::kOneBucketEach};
                as_before.first_buckets = whole.ddp->logging_data().bucket_parameters;
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

TEST_P(HookContract, HooksCanBeReplacedWhileTraining) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{17, 23}, {5}, {600}});
    int64_t step = 0;
    expect_step_in_order(rig, {"", 1e-5, {}}, step++);  // none
    for (const Case& c : averaging_cases()) {
      SCOPED_TRACE(c.spec);
      set_hook(rig, c);
      expect_step_in_order(rig, c, step++);
      expect_step_in_order(rig, c, step++);
      EXPECT_EQ(rig.ddp->hook_stats().total.steps, 2);
    }
    rig.ddp->set_hook(nullptr);
    rig.kind = {};
    expect_step_in_order(rig, {"", 1e-5, {}}, step++);
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

// A power of two only moves exponents, so nothing may depend on the absolute size.
TEST_P(HookContract, ScalingByAPowerOfTwoScalesTheResultExactly) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{17, 23}, {5}, {600}});
    for (const char* spec :
         {"allreduce", "fixed", "bf16", "quantize_per_tensor", "quantize_per_channel",
          "int8", "int4", "topk:ratio=0.1", "randomk:ratio=0.1", "powersgd:start=0,rank=2",
          "powersgd:start=0,rounds=1", "batched_powersgd:start=0", "bf16+int8"}) {
      const auto train = [&](double scale) {
        rig.ddp->set_hook(make_hook(spec));
        std::vector<at::Tensor> results;
        for (int64_t step = 0; step < 3; ++step) {  // with errors fed back
          std::vector<at::Tensor> inputs = rig.inputs(step);
          for (at::Tensor& input : inputs) input.mul_(scale);
          results = rig.train_on(inputs);
        }
        return results;
      };
      const auto expected = train(1);
      for (double scale : {std::ldexp(1.0, -7), std::ldexp(1.0, 20)}) {
        SCOPED_TRACE(std::string(spec) + " times " + std::to_string(scale));
        const auto scaled = train(scale);
        for (size_t index = 0; index < expected.size(); ++index)
          EXPECT_TRUE(at::equal(scaled[index], expected[index] * scale));
      }
    }
  });
}

// The bytes that a rank sends for n values, from the hooks' cards in the docs.
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
    EXPECT_EQ(bytes_sent("fixed", flat), 2 * 4 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("fp16", flat), 2 * 2 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("bf16", flat), 2 * 2 * n * (w - 1) / w);
    EXPECT_EQ(bytes_sent("int8", flat), 2 * (n + 4 * n / 256) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("int4", flat), 2 * (n / 2 + 4 * n / 128) * (w - 1) / w);
    // For a chunk of fewer than 65,536 values, in whole pairs of positions.
    const int64_t kept = (n / w + 99) / 100;
    EXPECT_EQ(bytes_sent("topk", flat), 2 * (w - 1) * (4 * kept + (kept + 1) / 2 * 4));
    EXPECT_EQ(bytes_sent("randomk", flat), 2 * 4 * ((n + 99) / 100 + 1) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("quantize_per_channel", flat),
              2 * (n + 8 * n / 512) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("quantize_per_tensor", flat), 2 * (n + 8 * w) * (w - 1) / w);
    EXPECT_EQ(
        bytes_sent("powersgd:start=0,rank=2", {{60, 120}}),
        w == 1 ? 0 : 2 * (4 * 60 * 2) * (w - 1) / w + 2 * (4 * 120 * 2) * (w - 1) / w);
    EXPECT_EQ(bytes_sent("powersgd:start=0,rank=2,rounds=1", {{60, 120}}),
              2 * (4 * 60 * 2) * (w - 1) / w);
  });
}

}  // namespace
}  // namespace brigade
