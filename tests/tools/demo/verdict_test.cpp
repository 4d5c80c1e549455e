// The demo's words for numbers that the test chooses.
#include "demo/verdict.h"

#include <gtest/gtest.h>

namespace brigade::tool {
namespace {

constexpr const char* kLink = "100 Mbit/s";

Series series(const std::string& hook, const std::string& link, double step_ms) {
  return {.hook = hook,
          .link = link,
          .points = std::vector<StepPoint>(20),
          .test_accuracy = 0.9,
          .step_ms = step_ms,
          .bytes_per_step = 1e6};
}

bool says(const std::vector<Series>& all, const std::string& words) {
  for (const std::string& sentence : verdict(all))
    if (sentence.find(words) != std::string::npos) return true;
  return false;
}

TEST(Verdict, AHookThatCompressesOverTheLinkOnlyIsLookedAtThere) {
  const std::vector<Series> all{
      series("allreduce", "", 10), series("powersgd:start=1000", "", 10),
      series("allreduce", kLink, 80), series("powersgd:start=0", kLink, 20)};
  EXPECT_EQ(verdict(all).size(), 1U);
  EXPECT_TRUE(says(all, "4 times as quick"));
}

TEST(Verdict, AHookThatNeverCompressedOverTheLinkIsNotLookedAtThere) {
  std::vector<Series> all{series("allreduce", "", 10), series("powersgd:start=10", "", 10),
                          series("allreduce", kLink, 80),
                          series("powersgd:start=10", kLink, 20)};
  all[3].points.resize(10);
  EXPECT_FALSE(says(all, "real link"));
  all.push_back(series("int8", "", 10));
  all.push_back(series("int8", kLink, 40));
  EXPECT_TRUE(says(all, "int8 took 40"));
}

TEST(Verdict, AHookThatLearnsLessIsNoRivalOverTheLinkEither) {
  std::vector<Series> all{series("allreduce", "", 10), series("topk", "", 10),
                          series("allreduce", kLink, 80), series("topk", kLink, 20)};
  all[1].test_accuracy = 0.5;
  EXPECT_EQ(verdict(all).size(), 1U);
  EXPECT_TRUE(says(all, "Left aside"));
}

TEST(Verdict, NothingIsSaidWhereNothingCompressed) {
  const std::vector<Series> all{series("allreduce", "", 10),
                                series("powersgd:start=1000", "", 10)};
  EXPECT_TRUE(verdict(all).empty());
}

}  // namespace
}  // namespace brigade::tool
