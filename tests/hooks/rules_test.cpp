// Rules by name, and small gradients that stay exact.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "brigade/hooks.h"
#include "hooks/bag.h"
#include "hooks/hook_text.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

TEST(RuleText, PatternsKnowStarsAndQuestionMarks) {
  for (const auto& [pattern, name] : {std::pair{"*", ""},
                                      {"*", "a.b"},
                                      {"*.bias", "layer.0.bias"},
                                      {"embed.*", "embed."},
                                      {"a*b*c", "a.b.bc"},
                                      {"p?", "p7"},
                                      {"**", "x"},
                                      {"?*", "x"},
                                      {"*a", "aaa"}})
    EXPECT_TRUE(fits(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : {std::pair{"", "a"},
                                      {"p?", "p"},
                                      {"p?", "p10"},
                                      {"*.bias", "bias"},
                                      {"a*b", "abc"},
                                      {"A*", "a"},
                                      {"?", ""}})
    EXPECT_FALSE(fits(pattern, name)) << pattern << " " << name;
}

std::string refused(const std::string& spec) {
  try {
    make_hook(spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError for '" + spec + "'";
}

TEST(RuleText, TakesHooksWithOptionsAndWrappers) {
  EXPECT_EQ(make_hook("rules:*.bias=allreduce;*=fp16+int8:flat=1")->fingerprint(),
            "rules:*.bias=allreduce;*=fp16+int8:flat=1");
  EXPECT_EQ(make_hook("rules(a*=int8(flat=1,small=9);*=node+bf16)")->fingerprint(),
            "rules:a*=int8:flat=1,small=9;*=node+bf16");
  EXPECT_EQ(make_hook("fp16+rules:*=rules(x=fp16;*=powersgd(rank=2))")->fingerprint(),
            "fp16+rules:*=rules:x=fp16;*=" + make_hook("powersgd:rank=2")->fingerprint());
  EXPECT_EQ(make_hook("powersgd(rank=2)")->fingerprint(),
            make_hook("powersgd:rank=2")->fingerprint());
  EXPECT_EQ(make_hook("small+int8")->fingerprint(), "small+int8");
  EXPECT_EQ(make_hook("int8:small")->fingerprint(), "int8:small=1024");
  EXPECT_EQ(make_hook("rules:*=topk(small,ratio=0.1,flat=1)")->fingerprint(),
            make_hook("rules:*=topk(ratio=0.1,flat=1,small=1024)")->fingerprint());
  EXPECT_EQ(exact_small_wrapper(make_hook("int8"), 9)->fingerprint(), "small(9)+int8");
}

TEST(RuleText, WhatCannotBeReadIsRefusedWithTheRule) {
  EXPECT_EQ(
      refused("rules:*"),
      "hook 'rules': rule '*': expected PATTERN=HOOK, as in '*.bias=allreduce;*=int8'");
  EXPECT_NE(refused("rules:=fp16").find("expected PATTERN=HOOK"), std::string::npos);
  EXPECT_NE(refused("rules:*=fp16;").find("rule ''"), std::string::npos);
  EXPECT_NE(refused("rules:*=int9").find("did you mean 'int8'?"), std::string::npos);
  EXPECT_EQ(refused("rules:*=fp16;a=int8"),
            "rules: no parameter reaches 'a': it stands behind '*', which fits every name");
  EXPECT_NE(refused("powersgd(rank=2").find("expected ')'"), std::string::npos);
  EXPECT_NE(refused("powersgd(rank=2)x").find("expected ')'"), std::string::npos);
  EXPECT_NE(refused("int8:small=-1").find("0 or more"), std::string::npos);
  EXPECT_NE(refused("int8:small=").find("0 or more"), std::string::npos);
  EXPECT_NE(refused("int8:small,small=9").find("given twice"), std::string::npos);
  EXPECT_THROW(rules({}), ConfigError);
  EXPECT_THROW(rules({{"*", nullptr}}), ConfigError);
}

const Shapes kRuleShapes{{40, 30}, {30}, {17, 23}, {5}, {64, 64}, {300}};

double error_of(const Rig& rig, const std::vector<at::Tensor>& gradients, int64_t step,
                size_t index) {
  const at::Tensor mean = rig.mean(step, index);
  return ((gradients[index] - mean).norm() / mean.norm()).item<double>();
}

void expect_equal_everywhere(const ProcessGroup& group,
                             const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& gradient : gradients) {
    at::Tensor first = gradient.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(at::equal(first, gradient)) << "replicas differ";
  }
}

TEST(Rules, GiveEachParameterToTheFirstRuleThatFits) {
  run_ranks(3, [](ProcessGroup group) {
    // In one bucket no part except the last is contiguous; then each has its own bucket.
    for (const double cap : {25.0, testing::kOneBucketEach}) {
      Rig rig(group, "rules:p1=allreduce;p3=allreduce;p?=fp16;*=noop", kRuleShapes,
              at::kFloat, {.bucket_cap_mb = cap});
      for (int64_t step = 0; step < 3; ++step) {
        const auto gradients = rig.train(step);
        expect_equal_everywhere(group, gradients);
        for (size_t index = 0; index < kRuleShapes.size(); ++index) {
          const double error = error_of(rig, gradients, step, index);
          const bool exact = index == 1 || index == 3;
          EXPECT_LE(error, exact ? 1e-6 : 1e-3) << index;
          if (!exact) {
            EXPECT_GE(error, 1e-5) << index << " did not go as fp16";
          }
        }
      }
      const HookStats stats = rig.ddp->hook_stats();
      ASSERT_EQ(stats.parts.size(), 2u);
      EXPECT_EQ(stats.parts.at("p1|p3=allreduce").bytes_before, 3 * 4 * 35);
      EXPECT_EQ(stats.parts.at("p1|p3=allreduce").steps, 3);
      int64_t sent = 0;
      for (const auto& [name, part] : stats.parts) sent += part.bytes_sent;
      EXPECT_EQ(sent, stats.total.bytes_sent);
    }
  });
}

TEST(Rules, RefuseAModelWithAParameterThatNothingFits) {
  run_ranks(1, [](ProcessGroup group) {
    Rig rig(group, "allreduce", kRuleShapes);
    try {
      rig.ddp->set_hook(make_hook("rules:p0=fp16;p1=fp16"));
      ADD_FAILURE() << "it was taken";
    } catch (const ConfigError& error) {
      EXPECT_EQ(
          std::string(error.what()),
          "rules: no rule fits the parameter 'p2'; a last rule '*=HOOK' fits all that "
          "are left");
    }
    EXPECT_EQ(rig.ddp->hook()->name(), "allreduce");  // as before
  });
}

TEST(Rules, SayWhichOfThemDecideForNothing) {
  run_ranks(1, [](ProcessGroup group) {
    Rig rig(group, "rules:embed*=int8;p1=fp16;*=allreduce", kRuleShapes);
    const std::vector<std::string> history = rig.ddp->hook_stats().history;
    ASSERT_EQ(history.size(), 1u);
    EXPECT_EQ(history[0], "the rule 'embed*' decides for no parameter of this model");
    try {
      rig.ddp->set_hook(make_hook("rules:module.p1=fp16;*=allreduce"));
      ADD_FAILURE() << "it was taken";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("without the 'module.'"), std::string::npos)
          << error.what();
    }
  });
}

// A hook that sees only some of the buckets must still know when a step is over.
TEST(Rules, AHookInARuleCountsItsStepsAndKeepsItsErrors) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* first : {"p0", "p4"}) {  // in the last bucket, and not
      Rig rig(group, std::string("rules:") + first + "=powersgd:start=2;*=allreduce",
              kRuleShapes);
      const size_t index = first[1] - '0';
      for (int64_t step = 0; step < 4; ++step) {
        const double error = error_of(rig, rig.train(step), step, index);
        EXPECT_EQ(error > 1e-3, step >= 2) << "step " << step << ", error " << error;
      }
      const HookState state = rig.ddp->hook()->state();
      EXPECT_TRUE(state.tensors.contains(std::string("error.part0/") + first));
      EXPECT_EQ(state.tensors.count("error.part1/p1"), 0u);
    }
  });
}

// error_feedback_test.cpp has states of another number of ranks.
TEST(Rules, AStateOfTheirPartsIsCombinedAndLoaded) {
  const std::string spec = "rules:p?=int8;*=fp16";
  run_ranks(2, [&](ProcessGroup group) {
    Rig rig(group, spec, kRuleShapes, at::kFloat, {.bucket_cap_mb = 25.0});
    rig.train(0);
    const HookState own = rig.ddp->hook()->state();
    const HookState two = combine_states(std::vector<HookState>{own, own});
    EXPECT_EQ(two.tensors.size(), kRuleShapes.size());
    for (const auto& [key, tensor] : two.tensors)
      EXPECT_TRUE(at::allclose(tensor, own.tensors.at(key), 1e-6, 1e-12)) << key;
    Rig other(group, spec, kRuleShapes, at::kFloat, {.bucket_cap_mb = 25.0});
    other.ddp->hook()->load_state(two);
    EXPECT_EQ(other.ddp->hook()->state().tensors.size(), kRuleShapes.size());
    other.train(1);
  });
}

TEST(Rules, WorkWhereRanksShareHosts) {
  run_ranks(4,
            [](ProcessGroup group) {
              Rig rig(group, "rules:p0=node+allreduce;p2=node+int8;*=int8(small=1024)",
                      kRuleShapes, at::kFloat, {.bucket_cap_mb = 25.0});
              for (int64_t step = 0; step < 3; ++step) {
                const auto gradients = rig.train(step);
                expect_equal_everywhere(group, gradients);
                EXPECT_LE(rig.error(gradients, step), 1.5e-2);
                EXPECT_LE(error_of(rig, gradients, step, 0), 1e-6);
              }
            },
            {.hosts = {0, 0, 1, 1}});
}

TEST(Small, VectorsAndSmallTensorsGoExactAndLeaveNoError) {
  run_ranks(3, [](ProcessGroup group) {
    for (const char* spec :
         {"int8:small=400", "quantize_per_tensor:small=400", "small+int8"}) {
      SCOPED_TRACE(spec);
      Rig rig(group, spec, kRuleShapes, at::kFloat, {.bucket_cap_mb = 25.0});
      for (int64_t step = 0; step < 3; ++step) {
        const auto gradients = rig.train(step);
        expect_equal_everywhere(group, gradients);
        for (const size_t index : {1, 2, 3, 5})
          EXPECT_LE(error_of(rig, gradients, step, index), 1e-6) << index;
        EXPECT_GE(error_of(rig, gradients, step, 4), 1e-4);
        EXPECT_LE(rig.error(gradients, step), 5e-2);
      }
      for (const auto& [key, error] : rig.ddp->hook()->state().tensors) {
        const bool small = key != "error.p0" && key != "error.p4";
        EXPECT_EQ(error.abs().max().item<double>() == 0, small) << key;
      }
    }
  });
}

// A user's hook, by name in a rule, runs others on parts.
TEST(Rules, TakeRegisteredHooks) {
  register_hook("tripled", [](const HookArguments&) {
    return make_hook("tripled", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      at::Tensor mean = co_await average(bucket, comm);
      co_return mean.mul_(3);
    });
  });
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "rules:p2=tripled;*=allreduce", kRuleShapes, at::kFloat,
            {.bucket_cap_mb = 25.0});
    const auto gradients = rig.train(0);
    EXPECT_LE((gradients[2] - 3 * rig.mean(0, 2)).abs().max().item<double>(), 1e-5);
    EXPECT_LE(error_of(rig, gradients, 0, 0), 1e-6);
  });
}

}  // namespace
}  // namespace brigade
