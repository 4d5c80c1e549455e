// Hooks with error feedback lose nothing: the sum of all results plus the mean of the
// errors kept equals the sum of the mean inputs.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "brigade/compose_hooks.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::gather_states;
using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

const std::vector<std::string> kSpecs{"powersgd:start=0",
                                      "powersgd:start=0,rank=2,batch=1",
                                      "powersgd:start=0,rank=3,warm=0",
                                      "powersgd:start=0,rank=2,rounds=1",
                                      "batched_powersgd:start=0,rank=2",
                                      "int8",
                                      "int4",
                                      "topk:ratio=0.1",
                                      "randomk:ratio=0.1"};

// Matches "error.p0", and as an error of a part "error.part1/p0".
bool is_error_of(const std::string& key, const std::string& parameter) {
  return key == kErrorPrefix + parameter ||
         (key.starts_with(kErrorPrefix) && key.ends_with("/" + parameter));
}

// Adds up inputs and results for each parameter.
struct Ledger {
  explicit Ledger(const Shapes& shapes) {
    for (const auto& shape : shapes) {
      in.push_back(at::zeros(shape, at::kDouble));
      out.push_back(at::zeros(shape, at::kDouble));
    }
  }
  void train(Rig& rig, int64_t step) {
    const auto gradients = rig.train(step);
    for (size_t index = 0; index < in.size(); ++index) {
      in[index] += rig.mean(step, index);
      out[index] += gradients[index];
    }
  }
  // Exact except for rounding, which includes that of a larger layer in the same bucket.
  // `rounding`: the relative error that a value may have.
  void expect_balanced(const Rig& rig, const HookState& state,
                       double rounding = 2e-6) const {
    double largest = 0;
    for (const at::Tensor& sum : in) largest = std::max(largest, sum.norm().item<double>());
    for (size_t index = 0; index < in.size(); ++index) {
      at::Tensor kept = at::zeros_like(in[index]);
      for (const auto& [key, error] : state.tensors) {
        if (is_error_of(key, "p" + std::to_string(index))) kept += error.view(kept.sizes());
      }
      rig.group.all_reduce(kept);
      kept /= rig.group.size();
      const double off = (in[index] - out[index] - kept).norm().item<double>();
      EXPECT_LE(off, rounding * in[index].norm().item<double>() + 2e-9 * largest)
          << "parameter " << index;
    }
  }
  std::vector<at::Tensor> in, out;
};

class ErrorFeedback : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ErrorFeedback, ::testing::Values(2, 3, 4));

TEST_P(ErrorFeedback, WhatCameOutAndWhatIsKeptIsWhatWentIn) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{24, 30}, {40, 10}, {24, 30}, {13}};
    Rig rig(group, "", shapes, at::kFloat, {.bucket_cap_mb = 0.005});
    for (const std::string& spec : kSpecs) {
      SCOPED_TRACE(spec);
      rig.ddp->set_hook(make_hook(spec));
      Ledger ledger(shapes);
      for (int64_t step = 0; step < 6; ++step) {
        ledger.train(rig, step);
        ledger.expect_balanced(rig, rig.ddp->hook()->state());
      }
      EXPECT_GT((ledger.in[0] - ledger.out[0]).norm().item<double>(), 1e-3)
          << "nothing was lost, so nothing was shown";
    }
  });
}

// Errors are kept by parameter, so other buckets from the second step on lose nothing.
TEST_P(ErrorFeedback, SurvivesTheRebuildingOfBuckets) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{24, 30}, {40, 10}, {24, 30}, {13}};
    for (const std::string& spec : kSpecs) {
      SCOPED_TRACE(spec);
      DdpOptions options{.bucket_cap_mb = 0.005};
      options.first_buckets = {{"p1", "p3", "p0"}, {"p2"}};
      Rig rig(group, spec, shapes, at::kFloat, options);
      Ledger ledger(shapes);
      const auto before = rig.ddp->logging_data().bucket_parameters;
      for (int64_t step = 0; step < 4; ++step) ledger.train(rig, step);
      EXPECT_NE(rig.ddp->logging_data().bucket_parameters, before);
      ledger.expect_balanced(rig, rig.ddp->hook()->state());
    }
  });
}

// The errors of the parameter that this rank keeps.
at::Tensor errors_of(const Rig& rig, size_t parameter) {
  const HookState state = rig.ddp->hook()->state();
  return state.tensors.at(kErrorPrefix + ("p" + std::to_string(parameter))).flatten();
}

TEST_P(ErrorFeedback, ABadStepLeavesTheErrorsAsTheyWere) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    constexpr int64_t kBad = 5;
    Rig rig(group, "", {{24, 30}}, at::kFloat);
    for (const std::string& spec : kSpecs) {
      if (spec == "int8" || spec == "int4" || spec.starts_with("topk"))
        continue;  // there a step is bad block by block
      for (double bad : {std::nan(""), HUGE_VAL}) {
        SCOPED_TRACE(spec);
        rig.ddp->set_hook(make_hook(spec));
        for (int64_t step = 0; step < 2; ++step) rig.train(step);
        const at::Tensor before = errors_of(rig, 0);
        std::vector<at::Tensor> poisoned = rig.inputs(2);
        if (group.rank() == 0) poisoned[0].view({-1})[kBad] = bad;
        rig.train_on(poisoned);
        at::Tensor off = (errors_of(rig, 0) - before).abs();
        EXPECT_TRUE(at::isfinite(off).all().item<bool>());
        off[kBad] = 0;  // the error of a value that is not finite may be lost
        EXPECT_LE(off.max().item<double>(), 1e-6) << "gradients have the size 1";
        EXPECT_GT(before.abs().max().item<double>(), 1e-2) << "nothing was kept";
      }
    }
  });
}

struct Trained {
  std::vector<at::Tensor> tensors;            // the last two results, and the state
  std::map<std::string, std::string> values;  // the hook's state
};

// Trains some steps, with others between them whose results are lost.
Trained train_with_losses(ProcessGroup group, const std::string& spec, bool loses) {
  DdpOptions options{.bucket_cap_mb = 0.005};
  options.first_buckets = {{"p1", "p3", "p0"}, {"p2"}};
  Rig rig(group, spec, {{24, 30}, {40, 10}, {24, 30}, {13}}, at::kFloat, options);
  Hook& hook = *rig.ddp->hook();
  EXPECT_TRUE(commit_hook(hook));
  // Buckets are rebuilt between these two passes.
  rig.train(10);
  rig.train(11);
  loses ? revert_hook(hook) : hook.reset();
  EXPECT_TRUE(commit_hook(hook));
  for (int64_t step = 0; step < 3; ++step) {
    rig.train(step);
    EXPECT_TRUE(commit_hook(hook));
    if (!loses) continue;
    // Takes one pass, or two, as with accumulation.
    for (int64_t pass = 0; pass <= step % 2; ++pass) rig.train(12 + step + pass);
    revert_hook(hook);
  }
  std::vector<at::Tensor> out = rig.train(4);
  for (const at::Tensor& gradient : rig.train(5)) out.push_back(gradient);
  const HookState state = hook.state();
  for (const auto& [key, tensor] : state.tensors) out.push_back(tensor);
  return {out, state.values};
}

void expect_lost_steps_leave_nothing(ProcessGroup group, const std::string& spec) {
  SCOPED_TRACE(spec);
  const auto undisturbed = train_with_losses(group, spec, false);
  const auto with_losses = train_with_losses(group, spec, true);
  EXPECT_EQ(with_losses.values, undisturbed.values);
  ASSERT_EQ(with_losses.tensors.size(), undisturbed.tensors.size());
  for (size_t index = 0; index < undisturbed.tensors.size(); ++index)
    EXPECT_TRUE(at::equal(with_losses.tensors[index], undisturbed.tensors[index])) << index;
}

TEST(LostStep, LeavesNothingBehindInHooksThatTakeItBack) {
  run_ranks(3, [](ProcessGroup group) {
    std::vector<std::string> specs = kSpecs;
    specs.insert(specs.end(),
                 {"powersgd:start=0,rank=6", "powersgd:start=9", "fp16+int8",
                  "int4:small=300", "rules:p0=fp16;p1=topk(ratio=0.1);*=int8"});
    for (const std::string& spec : specs) expect_lost_steps_leave_nothing(group, spec);
  });
}

// Two ranks divide their shares of a residual exactly.
TEST(LostStep, LeavesNothingBehindAmongTwo) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* spec : {"int8", "int4"}) expect_lost_steps_leave_nothing(group, spec);
  });
}

// A hook that keeps state and cannot revert says so.
TEST(LostStep, IsNotTakenBackByAHookThatCannot) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "node+int8", {{24, 30}});
    rig.train(0);
    EXPECT_FALSE(commit_hook(*rig.ddp->hook()));
  });
}

TEST(ErrorFeedbackAcrossSizes, FourRanksGoOnAsTwoAndNothingIsLost) {
  run_ranks(4, [](ProcessGroup group) {
    const Shapes shapes{{24, 50}, {40, 10}, {13}};  // the first is not small
    const ProcessGroup half = group.new_group({0, 1});
    Rig four(group, "", shapes);
    std::optional<Rig> two;
    if (half) two.emplace(half, "", shapes);
    std::vector<std::string> specs = kSpecs;
    specs.insert(specs.end(), {"small+int8", "fp16+int8",
                               "rules:p0=int4;p1=topk(ratio=0.1);*=fp16+int8"});
    for (const std::string& spec : specs) {
      SCOPED_TRACE(spec);
      // Half precision rounds inputs and results.
      const double rounding = spec.find("fp16+") == std::string::npos ? 2e-6 : 1e-3;
      four.ddp->set_hook(make_hook(spec));
      Ledger ledger(shapes);
      for (int64_t step = 0; step < 3; ++step) ledger.train(four, step);
      EXPECT_GT((ledger.in[0] - ledger.out[0]).norm().item<double>(),
                3 * rounding * ledger.in[0].norm().item<double>())
          << "nothing was lost, so nothing was shown";
      const auto shards = gather_states(group, four.ddp->hook()->state());
      if (!two) continue;
      const HookState combined = combine_states(shards);
      two->ddp->set_hook(make_hook(spec));
      two->ddp->hook()->load_state(combined);
      ledger.expect_balanced(*two, two->ddp->hook()->state(), rounding);
      for (int64_t step = 3; step < 6; ++step) ledger.train(*two, step);
      ledger.expect_balanced(*two, two->ddp->hook()->state(), rounding);
    }
  });
}

TEST(ErrorFeedbackAcrossSizes, StatesThatDoNotBelongTogetherAreRefused) {
  run_ranks(1, [](ProcessGroup) {
    EXPECT_THROW(combine_states({}), ConfigError);
    HookState one, other;
    one.tensors["error.p0"] = at::ones({3});
    other.tensors["error.p0"] = at::ones({4});
    const std::vector<HookState> differ{one, other}, lacking{one, HookState{}};
    EXPECT_THROW(combine_states(differ), ConfigError);
    EXPECT_THROW(combine_states(lacking), ConfigError);
    other.tensors["error.p0"] = at::full({3}, 2.0);
    const std::vector<HookState> fit{one, other};
    EXPECT_TRUE(at::equal(combine_states(fit).tensors.at("error.p0"), at::full({3}, 1.5)));
  });
}

}  // namespace
}  // namespace brigade
