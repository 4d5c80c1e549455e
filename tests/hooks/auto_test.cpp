// The hook that chooses: its tuner's decisions, that all ranks follow them, and that
// nothing is lost on the way.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "hooks/auto/auto_hook.h"
#include "hooks/auto/step_clock.h"
#include "hooks/bag.h"
#include "hooks/scripted_tuner.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::scripted_auto;
using testing::Shapes;

WindowTimes waiting(double step, double exposed) {
  return {.step = step, .exposed = exposed, .busy = exposed};
}

std::unique_ptr<Tuner> judge_of(size_t candidates) {
  std::vector<std::string> names{"allreduce", "fp16", "int8", "int4"};
  names.resize(candidates + 1);
  return make_tuner(names);
}

TEST(AutoJudge, StaysExactOnOneHost) {
  const auto tuner = judge_of(2);
  const auto on_one_host = [](WindowTimes seen) {
    seen.on_one_host = true;
    return seen;
  };
  Decision decision = tuner->after(0, on_one_host(waiting(1, 0.9)));
  EXPECT_EQ(decision.hook, 0u);
  EXPECT_TRUE(decision.settled);
  EXPECT_EQ(decision.line,
            "chose allreduce: all ranks are on one host, and nothing crosses a network");
  // This holds when it looks again, too.
  for (int window = 0; window < 20; ++window) {
    decision = tuner->after(0, on_one_host(waiting(3, 2.9)));
    EXPECT_EQ(decision.hook, 0u);
    EXPECT_TRUE(decision.settled);
  }
}

TEST(AutoJudge, StaysExactWhereLessThanATenthOfAStepWaits) {
  const auto tuner = judge_of(2);
  const Decision decision = tuner->after(0, waiting(1, 0.08));
  EXPECT_EQ(decision.hook, 0u);
  EXPECT_TRUE(decision.settled);
  EXPECT_EQ(decision.line,
            "chose allreduce: only 80 ms of 1000 ms a step wait for allreduce, and another "
            "hook must save 10 %");
}

TEST(AutoJudge, KeepsACandidateOnlyIfItSavedATenthTwice) {
  struct Case {
    double first, again_exact, second;
    size_t choice;
  };
  for (const auto& [first, again_exact, second, choice] :
       {Case{0.30, 1.0, 0.30, 1}, Case{0.89, 1.0, 0.89, 1},
        // This happens once: the first exact window, or the first trial, was unusual.
        Case{0.89, 0.95, 0.89, 0}, Case{0.60, 1.0, 0.95, 0},
        // The exact hook became quicker by itself, and the candidate with it.
        Case{0.60, 0.5, 0.30, 1}}) {
    SCOPED_TRACE(std::to_string(first) + " " + std::to_string(second));
    const auto tuner = judge_of(1);
    Decision decision = tuner->after(0, waiting(1, 0.8));
    EXPECT_EQ(decision.hook, 1u);
    EXPECT_FALSE(decision.settled);
    EXPECT_EQ(decision.line, "trying fp16: 800 ms of 1000 ms a step wait for allreduce");
    decision = tuner->after(1, waiting(first, 0.1));
    EXPECT_EQ(decision.hook, 0u);
    EXPECT_FALSE(decision.settled);
    EXPECT_NE(decision.line.find("; both once more"), std::string::npos) << decision.line;
    decision = tuner->after(0, waiting(again_exact, 0.8));
    EXPECT_EQ(decision.hook, 1u);
    EXPECT_FALSE(decision.settled);
    decision = tuner->after(1, waiting(second, 0.1));
    EXPECT_TRUE(decision.settled);
    EXPECT_EQ(decision.hook, choice);
    EXPECT_EQ(decision.line.find(choice == 1 ? "chose fp16: " : "chose allreduce: "), 0u)
        << decision.line;
    EXPECT_EQ(tuner->after(choice, waiting(choice == 1 ? second : again_exact, 0.1)).line,
              "");
  }
}

TEST(AutoJudge, ATrialThatSavesNothingIsNotRepeated) {
  for (const double measured : {0.91, 1.5}) {
    const auto tuner = judge_of(1);
    tuner->after(0, waiting(1, 0.8));
    const Decision decision = tuner->after(1, waiting(measured, 0.1));
    EXPECT_TRUE(decision.settled);
    EXPECT_EQ(decision.hook, 0u);
    EXPECT_EQ(decision.line,
              "chose allreduce: nothing that was tried saved 10 % of 1000 ms a step");
  }
}

TEST(AutoJudge, WhatIsSavedIsMoreThanTimesDifferByThemselves) {
  // Steps take one or three milliseconds; a gain of less than half of one is only chance.
  const auto brief = judge_of(1);
  EXPECT_TRUE(brief->after(0, waiting(0.9e-3, 0.45e-3)).settled);
  const auto longer = judge_of(1);
  EXPECT_EQ(longer->after(0, waiting(3e-3, 2e-3)).hook, 1u);
  EXPECT_EQ(longer->after(1, waiting(2.6e-3, 1e-3)).line,
            "chose allreduce: nothing that was tried saved 17 % of 3.00 ms a step");
}

// Goes on under the candidate that was found, which saves as much again.
Decision confirm(Tuner& tuner, Decision decision, double exact, const WindowTimes& seen) {
  EXPECT_EQ(decision.hook, 0u) << decision.line;
  decision = tuner.after(0, waiting(exact, 0.8 * exact));
  EXPECT_GT(decision.hook, 0u);
  return tuner.after(decision.hook, seen);
}

TEST(AutoJudge, TriesAllFromTheMostExactOnAndTakesTheOneThatSavedOverThoseBefore) {
  const auto tuner = judge_of(3);
  EXPECT_EQ(tuner->after(0, waiting(1, 0.8)).hook, 1u);
  Decision decision = tuner->after(1, waiting(0.62, 0.4));
  EXPECT_EQ(decision.hook, 2u);
  EXPECT_EQ(decision.line, "trying int8: 400 ms of 620 ms a step wait for fp16");
  decision = tuner->after(2, waiting(0.95, 0.7));
  EXPECT_EQ(decision.hook, 3u);
  EXPECT_EQ(decision.line, "trying int4: 400 ms of 620 ms a step wait for fp16");
  // It is quicker than fp16, but not by a tenth.
  const Decision found = tuner->after(3, waiting(0.6, 0.1));
  EXPECT_EQ(found.line,
            "fp16 took 620 ms a step instead of 1000 ms with allreduce; both once more");
  decision = confirm(*tuner, found, 0.99, waiting(0.63, 0.4));
  EXPECT_TRUE(decision.settled);
  EXPECT_EQ(decision.hook, 1u);
  EXPECT_EQ(decision.line, "chose fp16: 630 ms a step instead of 990 ms with allreduce");
}

TEST(AutoJudge, TriesNoCoarserOneWhereLessThanATenthWaitsForTheBestSoFar) {
  const auto tuner = judge_of(3);
  EXPECT_EQ(tuner->after(0, waiting(1, 0.8)).hook, 1u);
  EXPECT_EQ(tuner->after(1, waiting(0.62, 0.4)).hook, 2u);
  const Decision found = tuner->after(2, waiting(0.3, 0.02));
  EXPECT_EQ(found.line,
            "int8 took 300 ms a step instead of 1000 ms with allreduce; both once more");
  EXPECT_EQ(confirm(*tuner, found, 1, waiting(0.3, 0.02)).hook, 2u);
}

TEST(AutoJudge, LooksAgainWhenTimesStayDifferentAndThenLessAndLessOften) {
  const auto tuner = judge_of(1);
  const WindowTimes usual = waiting(0.5, 0.3);
  const auto look = [&] {
    EXPECT_EQ(tuner->after(0, waiting(1, 0.8)).hook, 1u);
    EXPECT_TRUE(confirm(*tuner, tuner->after(1, usual), 1, usual).settled);
  };
  look();
  // A single slow window counts for nothing.
  EXPECT_EQ(tuner->after(1, waiting(0.9, 0.7)).hook, 1u);
  EXPECT_EQ(tuner->after(1, usual).hook, 1u);
  int waited = 0;
  for (const int expected : {3, 6, 12, 24}) {
    Decision decision{1, true, ""};
    for (waited = 0; decision.settled; ++waited)
      decision = tuner->after(1, waiting(0.9, 0.7));
    EXPECT_EQ(waited, expected);
    EXPECT_EQ(decision.hook, 0u);
    EXPECT_NE(decision.line.find("looking again"), std::string::npos);
    look();
  }
  // A quicker link shows in the busy time, if not in the steps; under the exact hook it
  // changes nothing.
  for (const size_t hook : {0, 1}) {
    const auto settled = judge_of(1);
    settled->resume(hook);
    for (int window = 0; window < 3; ++window)
      EXPECT_TRUE(settled->after(hook, waiting(0.5, window == 0 ? 0.3 : 0.2)).settled);
    EXPECT_EQ(settled->after(hook, waiting(0.5, 0.2)).settled, hook == 0);
  }
  // A resumed tuner takes the first values that it sees as usual.
  const auto resumed = judge_of(1);
  resumed->resume(1);
  for (int window = 0; window < 3; ++window)
    EXPECT_TRUE(resumed->after(1, waiting(0.7, 0.1)).settled);
}

TEST(AutoJudge, WhoDecidesInAnothersPlaceMeasuresTheExactHookFirst) {
  const auto tuner = judge_of(1);
  const Decision decision = tuner->after(1, waiting(0.5, 0.3));
  EXPECT_EQ(decision.hook, 0u);
  EXPECT_FALSE(decision.settled);
  EXPECT_EQ(tuner->after(0, waiting(1, 0.8)).hook, 1u);
}

TEST(AutoClock, TakesQuickStepsWithoutTheFirst) {
  StepClock clock;
  const auto at = [](double seconds) {
    return StepClock::Time(std::chrono::duration_cast<StepClock::Time::duration>(
        std::chrono::duration<double>(seconds)));
  };
  for (int step = 0; step < 5; ++step) {
    const double begin = 10.0 * step;
    clock.begin_step(at(begin));
    const size_t first = clock.started(at(begin + 1)),
                 second = clock.started(at(begin + 3));
    clock.ended(second, at(begin + (step == 3 ? 9 : 6)));
    clock.ended(first, at(begin + 2));
  }
  EXPECT_FALSE(clock.window(4));
  const WindowTimes seen = *clock.window(1);  // three steps
  EXPECT_NEAR(seen.step, 10, 1e-6);
  EXPECT_NEAR(seen.exposed, 3, 1e-6);
  EXPECT_NEAR(seen.busy, 4, 1e-6);
  // The first bucket was over before the last began.
  ASSERT_EQ(seen.exposed_by_bucket.size(), 2u);
  EXPECT_EQ(seen.exposed_by_bucket[0], 0);
  EXPECT_NEAR(seen.exposed_by_bucket[1], 3, 1e-6);
  clock.begin_window();
  EXPECT_FALSE(clock.window(0));
}

TEST(AutoClock, DividesWhatIsExposedAmongTheBuckets) {
  const auto at = [](int seconds) {
    return StepClock::Time(std::chrono::seconds(seconds));
  };
  StepClock clock;
  clock.begin_step(at(0));
  const std::vector<size_t> buckets{clock.started(at(1)), clock.started(at(2)),
                                    clock.started(at(4))};
  clock.ended(buckets[0], at(3));
  clock.ended(buckets[1], at(6));
  clock.ended(buckets[2], at(7));
  clock.begin_step(at(9));
  const WindowTimes seen = *clock.window(0);
  EXPECT_EQ(seen.exposed, 3);
  EXPECT_EQ(seen.exposed_by_bucket, (std::vector<double>{0, 2, 1}));
  EXPECT_EQ(text_by_bucket(seen), "bucket 1: 2000 ms, bucket 2: 1000 ms");
  EXPECT_EQ(text_by_bucket(waiting(1, 0.5)), "");
}

const Shapes kAutoShapes{{40, 30}, {30}, {17, 23}, {300}};

TEST(Auto, AllRanksFollowRankZeroAndWhatIsOwedIsPaid) {
  run_ranks(3, [](ProcessGroup group) {
    for (const double cap : {25.0, testing::kOneBucketEach}) {
      Rig rig(group, "", kAutoShapes, at::kFloat, {.bucket_cap_mb = cap});
      rig.ddp->set_hook(scripted_auto(group));
      std::vector<at::Tensor> sum;  // the results' sum, less the expected one
      for (const auto& shape : kAutoShapes) sum.push_back(at::zeros(shape, at::kDouble));
      for (int64_t step = 0; step < 4 * kAutoWindow; ++step) {
        SCOPED_TRACE(step);
        const auto gradients = rig.train(step);
        double off = 0;
        for (size_t index = 0; index < kAutoShapes.size(); ++index) {
          at::Tensor first = gradients[index].clone();
          group.broadcast(first, 0);
          EXPECT_TRUE(at::equal(first, gradients[index])) << "replicas differ";
          sum[index] += gradients[index] - rig.mean(step, index);
          off += sum[index].norm().item<double>();
        }
        // The windows are exact, int8, exact, int4; after an exact step no residual is
        // carried.
        const int64_t window = step / kAutoWindow;
        EXPECT_EQ(off > 1e-4, window % 2 == 1) << off;
      }
      const HookStats stats = rig.ddp->hook_stats();
      if (group.rank() == 0) {
        EXPECT_EQ(stats.history,
                  (std::vector<std::string>{"step 8: trying int8", "step 16: back",
                                            "step 24: int4"}));
      }
    }
  });
}

TEST(Auto, OnOneHostItStaysExactAndTriesNothing) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "auto", kAutoShapes);
    for (int64_t step = 0; step < 5 * kAutoWindow; ++step) {
      rig.train(step);
      // After it has settled, no decision is broadcast any more.
      if (step >= kAutoWindow) {
        EXPECT_EQ(rig.ddp->hook_stats().last_step.collectives, kAutoShapes.size()) << step;
      }
    }
    EXPECT_EQ(rig.ddp->hook()->state().values.at("choice"), "allreduce");
    if (group.rank() != 0) return;
    const std::vector<std::string> history = rig.ddp->hook_stats().history;
    ASSERT_FALSE(history.empty());
    for (const std::string& line : history) {
      EXPECT_NE(line.find("chose allreduce: all ranks are on one host"), std::string::npos)
          << line;
    }
  });
}

TEST(Auto, ACheckpointKeepsTheChoice) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "", kAutoShapes);
    rig.ddp->set_hook(scripted_auto(group));
    for (int64_t step = 0; step < 3 * kAutoWindow + 2; ++step) rig.train(step);
    const HookState settled = rig.ddp->hook()->state();
    EXPECT_EQ(settled.values.at("choice"), "int4");
    EXPECT_EQ(settled.values.at("settled"), "1");

    // After it has settled, the bits are the same as without a break.
    DdpOptions as_before{.bucket_cap_mb = testing::kOneBucketEach};
    as_before.first_buckets = rig.ddp->logging_data().bucket_parameters;
    Rig second(group, "", kAutoShapes, at::kFloat, as_before);
    second.ddp->set_hook(scripted_auto(group));
    second.ddp->hook()->load_state(settled);
    for (int64_t step = 0; step < kAutoWindow + 1; ++step) {
      const auto expected = rig.train(100 + step), resumed = second.train(100 + step);
      for (size_t index = 0; index < kAutoShapes.size(); ++index)
        EXPECT_TRUE(at::equal(expected[index], resumed[index])) << step;
    }
    auto other = make_auto("", {{"fp16", make_hook("fp16")}});
    EXPECT_THROW(other->load_state(settled), ConfigError);
  });
}

// Resumed in the middle of a trial, it begins the trial anew and pays the residual.
TEST(Auto, ATrialThatFourRanksDidNotFinishIsPaidBackByTwo) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup half = group.new_group({0, 1});
    Rig four(group, "", kAutoShapes);
    four.ddp->set_hook(scripted_auto(group));
    std::vector<at::Tensor> owed;  // the results that should have come, less those that did
    for (const auto& shape : kAutoShapes) owed.push_back(at::zeros(shape, at::kDouble));
    for (int64_t step = 0; step < kAutoWindow + 3; ++step) {
      const auto gradients = four.train(step);
      for (size_t index = 0; index < kAutoShapes.size(); ++index)
        owed[index] += four.mean(step, index) - gradients[index];
    }
    const auto shards = testing::gather_states(group, four.ddp->hook()->state());
    if (!half) return;
    EXPECT_EQ(shards[0].values.at("choice"), "int8");
    Rig two(half, "", kAutoShapes);
    two.ddp->set_hook(scripted_auto(half));
    two.ddp->hook()->load_state(combine_states(shards));
    const auto gradients = two.train(0);
    for (size_t index = 0; index < kAutoShapes.size(); ++index) {
      EXPECT_GT(owed[index].norm().item<double>(), 1e-5);
      const at::Tensor paid = gradients[index] - two.mean(0, index);
      EXPECT_LE((paid - owed[index]).norm().item<double>(), 1e-5) << index;
    }
    EXPECT_TRUE(two.ddp->hook()->state().tensors.empty());
  });
}

std::string auto_refusal(const std::string& spec) {
  try {
    make_hook(spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError for '" + spec + "'";
}

TEST(AutoText, CandidatesByNameOrByTheCoarsest) {
  for (const char* spec : {"auto", "auto:least=fp16", "auto:least=allreduce",
                           "auto:among=fp16/powersgd(rank=2,start=0)/fp16+allreduce"})
    EXPECT_EQ(make_hook(spec)->fingerprint(), spec);
  EXPECT_EQ(make_hook("rules:*.bias=allreduce;*=auto(least=int8)")->fingerprint(),
            "rules:*.bias=allreduce;*=auto:least=int8");
  EXPECT_EQ(auto_refusal("auto:least=noop"),
            "hook 'auto': least is 'noop', whose result is no mean");
  EXPECT_EQ(auto_refusal("auto:among=int8/noop"),
            "hook 'auto': 'noop' can't be a candidate: its result is no mean");
  EXPECT_NE(auto_refusal("auto:among=node+int8").find("can't be a candidate"),
            std::string::npos);
  EXPECT_NE(auto_refusal("auto:least=int9").find("did you mean 'int8'?"),
            std::string::npos);
  EXPECT_NE(auto_refusal("auto:most=int8").find("no option 'most'"), std::string::npos);
  EXPECT_NE(auto_refusal("auto:least=int8,among=fp16").find("either"), std::string::npos);
}

// It refuses a state that was saved with a hook that is no candidate.
bool may_choose(const std::string& spec, const std::string& hook) {
  try {
    make_hook(spec)->load_state({.values = {{"choice", hook}, {"settled", "0"}}});
  } catch (const ConfigError& error) {
    return std::string(error.what()).find("not a candidate") == std::string::npos;
  }
  return true;
}

TEST(AutoText, CandidatesAreRowsOfTheTableUpToTheCoarsestThatIsAllowed) {
  const std::vector<std::string> all{"fp16", "int8", "int4", "powersgd:rank=2,start=0"};
  const std::map<std::string, size_t> counts{{"auto:least=allreduce", 0},
                                             {"auto:least=fp16", 1},
                                             {"auto", 2},
                                             {"auto:least=int4", 3},
                                             {"auto:least=powersgd", 4}};
  for (const auto& [spec, count] : counts) {
    EXPECT_TRUE(may_choose(spec, "allreduce")) << spec;
    EXPECT_FALSE(may_choose(spec, "bf16")) << spec;
    for (size_t index = 0; index < all.size(); ++index)
      EXPECT_EQ(may_choose(spec, all[index]), index < count) << spec << " " << all[index];
  }
}

}  // namespace
}  // namespace brigade
