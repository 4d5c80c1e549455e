// Tests of PowerSGD only; contract_test.cpp has the promises of every hook, and
// error_feedback_test.cpp error feedback.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "brigade/hooks.h"
#include "hooks/bag.h"
#include "hooks/low_rank/power_sgd_core.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

at::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  return random_start(shape, at::TensorOptions().dtype(at::kDouble), seed, 0);
}

double relative(const at::Tensor& result, const at::Tensor& expected) {
  return ((result.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

at::Tensor mean_over(const ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor sum = mine.to(at::kDouble).clone();
  group.all_reduce(sum);
  return sum / group.size();
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

// Pinned memory needs CUDA: without a GPU there is none.
TEST(RandomStart, IsDrawnForAnyDevice) {
  const auto nowhere = at::TensorOptions(at::kFloat).device(at::kMeta);
  EXPECT_TRUE(random_start({3, 2}, nowhere, /*seed=*/1, /*draw=*/0).is_meta());
}

// ---- orthogonalize ----------------------------------------------------------------------

void expect_orthonormal_or_zero(const at::Tensor& batch, double tolerance) {
  const at::Tensor p = batch.to(at::kDouble);
  const at::Tensor gram = at::bmm(p.transpose(1, 2), p);
  for (int64_t b = 0; b < gram.size(0); ++b) {
    for (int64_t i = 0; i < gram.size(1); ++i) {
      for (int64_t j = 0; j < gram.size(2); ++j) {
        const double value = gram[b][i][j].item<double>();
        if (i == j && value == 0) continue;
        EXPECT_NEAR(value, i == j ? 1 : 0, tolerance) << b << ": " << i << ", " << j;
      }
    }
  }
}

TEST(Orthogonalize, ColumnsBecomeOrthonormal) {
  run_ranks(1, [](ProcessGroup) {
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (int64_t columns : {1, 2, 3, 7}) {
        for (double scale : {1.0, 1e30, 1e-30, 1e-40}) {
          SCOPED_TRACE(std::to_string(columns) + " columns times " + c10::str(scale));
          if (columns > 2 && scale == 1e-40) continue;  // QR flushes denormal numbers
          at::Tensor batch = normal({3, 50, columns}, 1).mul(scale).to(dtype);
          orthogonalize(batch, 0);
          expect_orthonormal_or_zero(batch, scale == 1e-40 ? 1e-3 : 1e-5);
          EXPECT_TRUE(batch.abs().sum(1).gt(0).all().item<bool>());
        }
      }
    }
  });
}

TEST(Orthogonalize, ColumnsThatDependOnOthersOrAreZeroBecomeZero) {
  run_ranks(1, [](ProcessGroup) {
    const at::Tensor x = normal({1, 60, 1}, 2).to(at::kFloat);
    const at::Tensor zero = at::zeros_like(x);
    const auto result = [](const at::Tensor& a, const at::Tensor& b) {
      at::Tensor batch = at::cat({a, b}, 2);
      orthogonalize(batch, 0);
      expect_orthonormal_or_zero(batch, 1e-5);
      return batch.abs().sum(1).gt(0).flatten();
    };
    const at::Tensor first_only = torch::tensor({true, false});
    EXPECT_TRUE(at::equal(result(x, zero), first_only));
    EXPECT_TRUE(at::equal(result(x, x), first_only));
    // Rounding differs, so the rest of the second column is noise, not a direction.
    EXPECT_TRUE(at::equal(result(x, x * 0.3), first_only));
    EXPECT_TRUE(at::equal(result(x * 1e-3, x * 7.7), first_only));
    EXPECT_TRUE(at::equal(result(zero, x), torch::tensor({false, true})));
    EXPECT_TRUE(at::equal(result(zero, zero), torch::tensor({false, false})));
    // The columns are close, but not the same, so both stay.
    const at::Tensor y = normal({1, 60, 1}, 3).to(at::kFloat);
    EXPECT_TRUE(at::equal(result(x, x + 1e-3 * y), torch::tensor({true, true})));
  });
}

TEST(Orthogonalize, WhatIsNotFiniteIsNaN) {
  run_ranks(1, [](ProcessGroup) {
    for (int64_t columns : {1, 2, 4}) {
      at::Tensor batch = normal({1, 9, columns}, 4).to(at::kFloat);
      batch[0][3][columns - 1] = HUGE_VAL;
      orthogonalize(batch, 0);
      EXPECT_FALSE(at::isfinite(batch).all().item<bool>());
    }
  });
}

// ---- exactness --------------------------------------------------------------------------

class PowerSgdRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PowerSgdRanks, ::testing::Values(1, 2, 3));

TEST_P(PowerSgdRanks, AtFullRankTheResultIsTheExactMean) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{8, 6}, {2, 31}, {31, 2}, {7, 3, 2}, {5}});
    for (const char* spec : {"powersgd:rank=8,start=0,min_rate=1e-3",
                             "powersgd:rank=8,start=0,min_rate=1e-3,warm=0,ef=0,batch=1",
                             "batched_powersgd:rank=9,start=0"}) {
      SCOPED_TRACE(spec);
      rig.ddp->set_hook(make_hook(spec));
      for (int64_t step = 0; step < 3; ++step) {
        EXPECT_LE(rig.error(rig.train(step), step), 1e-5);
      }
    }
  });
}

// The mean of W ranks' matrices of rank 1 has rank W.
TEST_P(PowerSgdRanks, AGradientOfLowRankIsReproduced) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int w = group.size();
    Rig rig(group, "", {{40, 30}, {64, 64}});
    const std::string enough = std::to_string(w), more = std::to_string(w + 1);
    for (const std::string& spec :
         {"powersgd:start=0,rank=" + enough, "powersgd:start=0,ef=0,rank=" + enough,
          "powersgd:start=0,rank=" + more,
          std::string("powersgd:start=0,rank=4,min_rate=1")}) {
      SCOPED_TRACE(spec);
      rig.ddp->set_hook(make_hook(spec));
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<at::Tensor> inputs;
        for (size_t index = 0; index < rig.shapes.size(); ++index) {
          const uint64_t seed = 100 * step + 10 * index + group.rank();
          const int64_t rows = rig.shapes[index][0], columns = rig.shapes[index][1];
          inputs.push_back(
              at::matmul(normal({rows, 1}, seed), normal({1, columns}, seed + 5))
                  .to(at::kFloat));
        }
        const auto results = rig.train_on(inputs);
        for (size_t index = 0; index < inputs.size(); ++index) {
          EXPECT_LE(relative(results[index], mean_over(group, inputs[index])), 2e-5)
              << "step " << step;
        }
        // Each rank now has errors of its own: the next step must start without them.
        rig.ddp->hook()->reset();
      }
    }
  });
}

// Ranks share the left factor, so the mean has rank 2, and stays from step to step.
TEST_P(PowerSgdRanks, WithOneRoundALowRankThatStaysIsExactFromTheSecondStepOn) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", {{40, 30}, {64, 64}, {9}});
    std::vector<at::Tensor> inputs;
    for (const auto& [rows, columns] : {std::pair{40, 30}, {64, 64}, {9, 0}}) {
      const at::Tensor left = normal({rows, columns > 0 ? 2 : 1}, rows);
      const at::Tensor right = normal({left.size(1), std::max(columns, 1)},
                                      static_cast<uint64_t>(columns + group.rank()));
      inputs.push_back(at::matmul(left, right).to(at::kFloat));
    }
    inputs[2] = inputs[2].flatten();
    for (const char* options :
         {",rank=2", ",rank=2,ef=0", ",batch=1,rank=3", ",rank=5,ef=0,min_rate=1"}) {
      SCOPED_TRACE(options);
      rig.ddp->set_hook(make_hook("powersgd:start=0,rounds=1" + std::string(options)));
      std::vector<at::Tensor> sums(3);
      for (int step = 0; step < 4; ++step) {
        const auto results = rig.train_on(inputs);
        if (step > 0) {  // the first step's buckets are others
          EXPECT_LE(rig.ddp->hook_stats().last_step.collectives, 3) << "one a bucket";
        }
        for (size_t index = 0; index < inputs.size(); ++index) {
          const at::Tensor mean = mean_over(group, inputs[index]);
          at::Tensor& sum = sums[index];
          sum = sum.defined() ? sum + results[index] : results[index].to(at::kDouble);
          const bool fed_back = std::string(options).find("ef=0") == std::string::npos;
          // Each step adds what the last one lacks, and sends Q for the P of all so far.
          if (step % 2 == 1 && fed_back) {
            EXPECT_LE(relative(sum, mean * (step + 1)), 2e-5);
          }
          if (step >= 1 && !fed_back) {
            EXPECT_LE(relative(results[index], mean), 2e-5) << "step " << step;
          }
        }
      }
    }
  });
}

// Awaits a collective before some buckets only, so that not all come in their first stage.
class LateForSome : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  std::string name() const override { return "late+" + inner().name(); }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor one = at::ones({1});
    if (bucket.index() % 2 == 1) {
      co_await comm.all_reduce(one);
    } else {
      co_await comm.skip();
    }
    co_return co_await reduce_inner(bucket, comm);
  }
};

// Tells the inner hook that parameters may be unused.
class MayBeUnused : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  std::string name() const override { return "unused+" + inner().name(); }
  void begin_pass(const HookPass& pass) override {
    HookWrapper::begin_pass({pass.complete, true});
  }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return reduce_inner(bucket, comm);
  }
};

// With two ranks a sum has the same bits whatever is sent with it. Where parameters may be
// unused, every bucket is sent alone.
TEST(PowerSgd, WithOneRoundSmallBucketsTravelTogetherAndGiveTheSameBits) {
  run_ranks(2, [](ProcessGroup group) {
    // Each has its own bucket: small ones, one that is large enough alone, and small ones
    // again.
    const Shapes shapes{{30, 20}, {7}, {40, 40}, {5000}, {25, 60}, {24, 10}, {5}};
    Rig together(group, "", shapes);
    Rig apart(group, "", shapes);
    const std::string inner = "powersgd:start=0,rank=2,rounds=1";
    const std::string nested = "powersgd(start=0,rank=2,rounds=1)";
    struct Case {
      std::string text;
      int64_t collectives;  // in the last step
    };
    for (const auto& [text, collectives] :
         {Case{inner, 3}, Case{"fp16+" + inner, 3}, Case{"rules:*=" + nested, 3},
          Case{"late+" + inner, 7 + 3}}) {
      SCOPED_TRACE(text);
      const auto make = [&, text = text]() -> std::shared_ptr<Hook> {
        if (!text.starts_with("late+")) return make_hook(text);
        return std::make_shared<LateForSome>(make_hook(inner));
      };
      together.ddp->set_hook(make());
      apart.ddp->set_hook(std::make_shared<MayBeUnused>(make()));
      for (int64_t step = 0; step < 5; ++step) {
        const auto inputs = together.inputs(step);
        const auto results = together.train_on(inputs), expected = apart.train_on(inputs);
        for (size_t index = 0; index < inputs.size(); ++index)
          EXPECT_TRUE(at::equal(results[index], expected[index])) << index;
      }
      EXPECT_EQ(together.ddp->hook_stats().last_step.collectives, collectives);
      EXPECT_GE(apart.ddp->hook_stats().last_step.collectives, 7);
    }
  });
}

// The smallest error that a matrix of that rank can have.
double best_error(const at::Tensor& matrix, int64_t rank) {
  const at::Tensor values = at::linalg_svdvals(matrix);
  return (values.narrow(0, rank, values.numel() - rank).norm() / values.norm())
      .item<double>();
}

TEST(PowerSgd, WarmStartFindsTheBestMatrixAndNoneDoesNot) {
  run_ranks(2, [](ProcessGroup group) {
    at::Tensor matrix = normal({60, 50}, 6);  // the same on both ranks
    const double best = best_error(matrix, 2);
    Rig rig(group, "", {{60, 50}});
    const auto error_after = [&](const std::string& spec) {
      rig.ddp->set_hook(make_hook(spec));
      double error = 0;
      for (int step = 0; step < 40; ++step)
        error = relative(rig.train_on({matrix.to(at::kFloat)})[0], matrix);
      return error;
    };
    const double warm = error_after("powersgd:start=0,rank=2,ef=0");
    const double cold = error_after("powersgd:start=0,rank=2,ef=0,warm=0");
    EXPECT_LE(warm, best * 1.002);
    EXPECT_GE(cold, best * 1.01) << "best " << best << ", warm " << warm;
    const double one_round = error_after("powersgd:start=0,rank=2,ef=0,rounds=1");
    EXPECT_LE(one_round, best * 1.01);
    const double batched = error_after("batched_powersgd:start=0,rank=2,ef=0");
    const double batched_cold = error_after("batched_powersgd:start=0,rank=2,ef=0,warm=0");
    EXPECT_LT(batched, batched_cold);
  });
}

// In a square the rows of these matrices would lie crosswise.
TEST(PowerSgd, BatchedKeepsTheLowRankOfTheLargestLayerOfABucket) {
  run_ranks(2, [](ProcessGroup group) {
    for (const auto& [rows, columns] :
         {std::pair{64, 56}, {200, 30}, {30, 180}, {64, 64}}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      Rig rig(group, "batched_powersgd:start=0,rank=6", {{rows, columns}});
      const at::Tensor one = at::matmul(normal({rows, 1}, 3), normal({1, columns}, 4));
      EXPECT_LE(relative(rig.train_on({one.to(at::kFloat)})[0], one), 1e-5);
      const auto hook = std::dynamic_pointer_cast<PowerSGDHook>(rig.ddp->hook());
      const double square = 2 * 6 * std::ceil(std::sqrt(rows * columns));
      EXPECT_LE(hook->compression_stats().elements_after, 1.03 * square);
    }
  });
}

// ---- zeros ------------------------------------------------------------------------------

TEST(PowerSgd, ZeroGradientsGiveZerosAndLaterOnesComeThrough) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "", {{30, 20}});
    const at::Tensor zeros = at::zeros({30, 20});
    for (const char* spec :
         {"powersgd:start=0", "powersgd:start=0,rank=2", "powersgd:start=0,rank=3",
          "powersgd:start=0,rank=2,eps=1e-8", "batched_powersgd:start=0,rank=2"}) {
      SCOPED_TRACE(spec);
      rig.ddp->set_hook(make_hook(spec));
      for (int step = 0; step < 3; ++step) {
        EXPECT_TRUE(at::equal(rig.train_on({zeros})[0], zeros));
      }
      const at::Tensor later =
          at::matmul(normal({30, 1}, 7), normal({1, 20}, 8)).to(at::kFloat);
      const bool square = std::string(spec).rfind("batched", 0) == 0;  // not of rank 1
      at::Tensor out = at::zeros({30, 20});
      for (int step = 0; step < 2; ++step) out += rig.train_on({later})[0];
      EXPECT_LE(relative(out / 2, later.to(at::kDouble)), square ? 0.99 : 1e-5);
    }
  });
}

TEST(PowerSgd, ARankThatIsNotNeededForAWhileIsThereWhenItIs) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "powersgd:start=0,rank=2", {{30, 20}});
    const at::Tensor one = at::matmul(normal({30, 1}, 9), normal({1, 20}, 10));
    const at::Tensor two = one + at::matmul(normal({30, 1}, 11), normal({1, 20}, 12));
    for (int step = 0; step < 5; ++step)
      EXPECT_LE(relative(rig.train_on({one.to(at::kFloat)})[0], one), 1e-5);
    // One matrix also has a column of zeros.
    at::Tensor holed = two.clone();
    holed.select(1, 4).zero_();
    for (const at::Tensor& matrix : {two, holed, one, two}) {
      EXPECT_LE(relative(rig.train_on({matrix.to(at::kFloat)})[0], matrix), 2e-5);
    }
  });
}

// ---- statistics, options, state ---------------------------------------------------------

TEST(PowerSgd, CountsWhatItCompresses) {
  run_ranks(2, [](ProcessGroup group) {
    auto hook = make_power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 1});
    // (60 + 120) 2 2 < 7200; the square of 4 and the vector are not worth compressing.
    Rig rig(group, "", {{60, 120}, {4, 4}, {10}});
    rig.ddp->set_hook(hook);
    rig.train(0);
    EXPECT_EQ(hook->compression_stats().elements_before, 0) << "not started";
    EXPECT_EQ(hook->compression_stats().rate, 0);
    for (int step = 1; step < 4; ++step) {
      rig.train(step);
      const CompressionStats stats = hook->compression_stats();
      EXPECT_EQ(stats.elements_before, step * (60 * 120 + 16 + 10));
      EXPECT_EQ(stats.elements_after, step * ((60 + 120) * 2 + 16 + 10));
      EXPECT_DOUBLE_EQ(stats.rate, static_cast<double>(stats.elements_before) /
                                       static_cast<double>(stats.elements_after));
    }
    auto batched = make_batched_power_sgd({.start_powerSGD_iter = 0});
    rig.ddp->set_hook(batched);
    rig.train(4);
    // The squares have sides 85, 4 and 4, the last without its fourth row.
    EXPECT_EQ(batched->compression_stats().elements_after, 2 * (85 + 4) + 3 + 4);
  });
}

TEST(PowerSgd, CompressesOnlyWhatGainsMoreThanTheRate) {
  run_ranks(1, [](ProcessGroup group) {
    // (12 + 12) 1 min_rate < 144, that is min_rate < 6
    for (double rate : {5.9, 6.0}) {
      auto hook = make_power_sgd({.start_powerSGD_iter = 0, .min_compression_rate = rate});
      Rig rig(group, "", {{12, 12}});
      rig.ddp->set_hook(hook);
      rig.train(0);
      EXPECT_EQ(hook->compression_stats().elements_after, rate < 6 ? 24 : 144);
    }
  });
}

TEST(PowerSgd, OptionsOutOfRangeAreRefusedWithFieldValueAndRule) {
  const auto refusal = [](const char* spec) {
    return message_of([&] { make_hook(spec); });
  };
  EXPECT_EQ(refusal("powersgd:rank=0"), "powersgd: rank is 0, expected 1 or more");
  EXPECT_EQ(refusal("batched_powersgd:rank=-3"),
            "batched_powersgd: rank is -3, expected 1 or more");
  EXPECT_EQ(refusal("powersgd:start=-1"), "powersgd: start is -1, expected 0 or more");
  EXPECT_EQ(refusal("powersgd:min_rate=0"),
            "powersgd: min_rate is 0, expected more than 0");
  EXPECT_EQ(refusal("powersgd:min_rate=nan"),
            "powersgd: min_rate is nan, expected more than 0");
  EXPECT_EQ(refusal("powersgd:eps=-0.5"), "powersgd: eps is -0.5, expected 0 or more");
  EXPECT_EQ(refusal("powersgd:eps=nan"), "powersgd: eps is nan, expected 0 or more");
  EXPECT_EQ(refusal("powersgd:rounds=3"), "powersgd: rounds is 3, expected 1 or 2");
  EXPECT_EQ(message_of([] { make_batched_power_sgd({.rounds = 1}); }),
            "batched_powersgd: rounds is 1, expected 2");
  EXPECT_EQ(refusal("powersgd:seed=-1"),
            "hook 'powersgd': seed is '-1', expected a whole number, 0 or more");
  EXPECT_EQ(message_of([] { make_power_sgd({.matrix_approximation_rank = 0}); }),
            "powersgd: rank is 0, expected 1 or more");
}

TEST(PowerSgd, StartsAreTheSameOnAllRanksAndNeverTheSameTwice) {
  run_ranks(2, [](ProcessGroup group) {
    const auto starts = [&](const std::string& options, int steps) {
      Rig rig(group, "powersgd:start=0,rank=2" + options, {{20, 30}, {20, 30}});
      for (int step = 0; step < steps; ++step) rig.train(step);
      const HookState state = rig.ddp->hook()->state();
      return std::vector{state.tensors.at("spare.p0"), state.tensors.at("spare.p1")};
    };
    at::manual_seed(5);
    const at::Tensor expected = at::randn({4});
    at::manual_seed(5 + group.rank());  // ranks need not agree on the global one
    const auto first = starts("", 1);
    if (group.rank() == 0) {
      EXPECT_TRUE(at::equal(at::randn({4}), expected)) << "the global generator moved";
    }
    for (const at::Tensor& start : first) {
      at::Tensor theirs = start.clone();
      group.broadcast(theirs, 0);
      EXPECT_TRUE(at::equal(start, theirs));
    }
    EXPECT_FALSE(at::equal(first[0], first[1])) << "two parameters";
    EXPECT_TRUE(at::equal(first[0], starts("", 1)[0])) << "not reproducible";
    EXPECT_TRUE(at::equal(first[0], starts("", 3)[0])) << "kept by a warm start";
    EXPECT_FALSE(at::equal(first[0], starts(",warm=0", 2)[0])) << "drawn again";
    EXPECT_FALSE(at::equal(first[0], starts(",seed=1", 1)[0]));
  });
}

TEST(PowerSgd, AnotherHooksStateIsRefused) {
  run_ranks(1, [](ProcessGroup group) {
    Rig rig(group, "powersgd:start=0", {{20, 30}});
    rig.train(0);
    const HookState state = rig.ddp->hook()->state();
    EXPECT_NO_THROW(make_hook("powersgd:start=0")->load_state(state));
    EXPECT_THROW(make_hook("powersgd:start=0,rank=2")->load_state(state), MismatchError);
    EXPECT_THROW(make_hook("batched_powersgd:start=0")->load_state(state), MismatchError);
    EXPECT_THROW(make_hook("powersgd:start=0")->load_state({}), ConfigError);
  });
}

}  // namespace
}  // namespace brigade
