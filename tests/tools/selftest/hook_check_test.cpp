// The checks of brigade selftest, on hooks that are broken on purpose.
#include "selftest/hook_check.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "brigade/hooks.h"
#include "support/ranks.h"

namespace brigade::tool {
namespace {

using Reduce = std::function<Task<at::Tensor>(Bucket, Comm&)>;

HookCheck broken(Reduce reduce, double tolerance = 1e-3) {
  return {.name = "broken",
          .make = [reduce] { return make_hook("broken", reduce); },
          .tolerance = tolerance};
}

// Expects the check's text for a hook on two ranks, the same on both.
void expect_failure(const HookCheck& check, const std::vector<std::string>& says,
                    const testing::RankOptions& options = {}) {
  testing::run_ranks(
      2,
      [&](ProcessGroup group) {
        const Worker worker{group, at::kCPU};
        const HookCheckResult result = check_hook(worker, check);
        EXPECT_FALSE(result.passed());
        for (const std::string& part : says) {
          EXPECT_NE(result.failure.find(part), std::string::npos) << result.failure;
        }
        // The workers can go on with the next hook.
        const HookCheckResult good = check_hook(worker, hook_checks().at(0));
        EXPECT_TRUE(good.passed()) << good.failure;
      },
      options);
}

Task<at::Tensor> mean(Bucket bucket, Comm& comm) {
  at::Tensor buffer = bucket.buffer();
  buffer.div_(comm.size());
  co_await comm.all_reduce(buffer);
  co_return buffer;
}

TEST(HookCheck, EveryHookOfTheTableIsInIt) {
  const auto checks = hook_checks();
  ASSERT_FALSE(hook_table().empty());
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    SCOPED_TRACE(name);
    const auto count = [&](bool low_rank, double tolerance) {
      return std::ranges::count_if(checks, [&](const HookCheck& check) {
        return check.name.substr(0, check.name.find(':')) == name &&
               check.low_rank == low_rank && check.tolerance <= tolerance &&
               (check.tolerance < 0) == (tolerance < 0);
      });
    };
    const bool low_rank = std::ranges::count(entry.options, "rank") > 0;
    // Low-rank hooks are checked with gradients that they can reproduce.
    EXPECT_EQ(count(true, 1e-3), low_rank ? 1 : 0);
    EXPECT_EQ(count(false, entry.tolerance), 1);
  }
  for (const HookCheck& check : checks) EXPECT_NE(check.make(), nullptr) << check.name;
}

TEST(HookCheck, EveryWrapperIsInIt) {
  std::vector<std::string> wrappers;
  for (const HookCheck& check : hook_checks()) {
    if (const size_t plus = check.name.find('+'); plus != std::string::npos)
      wrappers.push_back(check.name.substr(0, plus));
  }
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    bool wraps = true;
    try {
      make_hook(name + "+allreduce");
    } catch (const ConfigError&) {
      wraps = false;
    }
    EXPECT_EQ(std::ranges::count(wrappers, name) > 0, wraps) << name;
  }
}

TEST(HookCheck, AHookThatKeepsItsPromisePasses) {
  testing::run_ranks(3, [](ProcessGroup group) {
    const HookCheckResult result = check_hook({group, at::kCPU}, broken(mean, 1e-5));
    EXPECT_TRUE(result.passed()) << result.failure;
    EXPECT_GE(result.buckets, 5);
    EXPECT_GT(result.error, 0);
    EXPECT_LT(result.error, 1e-6);
  });
}

TEST(HookCheck, ASumInsteadOfAMeanIsFoundInTheFirstBucket) {
  const auto sum = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor buffer = bucket.buffer();
    co_await comm.all_reduce(buffer);
    co_return buffer;
  };
  expect_failure(broken(sum), {"step 0", "parameter p0 (96x64)", "relative error",
                               "allowed 0.001", "the exact mean is"});
}

TEST(HookCheck, OneWrongValueInOneBucketOfOneStepIsNamed) {
  const auto wrong = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor buffer = bucket.buffer();
    buffer.div_(comm.size());
    co_await comm.all_reduce(buffer);
    if (comm.step() == 2 && bucket.names()[0] == "p4") buffer[17] += 1000;
    co_return buffer;
  };
  expect_failure(broken(wrong), {"step 2", "parameter p4 (5000)", "worst at element 17"});
}

TEST(HookCheck, ReplicasThatDifferWithinTheToleranceAreFound) {
  const auto drifts = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor buffer = bucket.buffer();
    buffer.div_(comm.size());
    co_await comm.all_reduce(buffer);
    if (comm.rank() == 1 && bucket.names()[0] == "p2") buffer.mul_(1 + 1e-6);
    co_return buffer;
  };
  expect_failure(broken(drifts),
                 {"rank 1: step 0", "parameter p2 (33x17)", "differs from rank 0's"});
}

TEST(HookCheck, ValuesThatAreNotFiniteAreFound) {
  const auto nan = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor buffer = bucket.buffer();
    buffer.div_(comm.size());
    co_await comm.all_reduce(buffer);
    if (bucket.names()[0] == "p3") buffer.fill_(NAN);
    co_return buffer;
  };
  expect_failure(broken(nan), {"parameter p3 (1)", "not finite"});
}

TEST(HookCheck, WhatAHookThrowsOnOneRankIsItsFailure) {
  const auto throws = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    co_await comm.all_reduce(bucket.buffer());
    if (comm.rank() == 1 && comm.step() == 1)
      throw std::runtime_error("the hook's own words");
    co_return bucket.buffer().div_(comm.size());
  };
  expect_failure(broken(throws), {"the hook's own words"});
}

TEST(HookCheck, AHookThatWaitsForEverIsAFailureAtTheTimeLimit) {
  const auto waits = [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor buffer = bucket.buffer();
    if (comm.rank() == 0) co_await comm.all_reduce(buffer);
    co_return buffer;
  };
  expect_failure(broken(waits), {"broken"}, {.timeout = std::chrono::milliseconds(1500)});
}

TEST(HookCheck, AHookThatMustNotCommunicateMustNotChangeItsGradients) {
  expect_failure(broken(mean, -1), {"own gradient came back changed"});
}

}  // namespace
}  // namespace brigade::tool
