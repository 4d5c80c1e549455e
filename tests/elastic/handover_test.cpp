// All ranks get one rank's state unchanged.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "elastic/state_transfer.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using elastic::hand_over;
using elastic::States;
using testing::run_ranks;

States some_states(int64_t large) {
  States states;
  states["model"].tensors = {{"a", at::arange(7, at::kFloat).view({7, 1})},
                             {"b", at::arange(large, at::kByte)},
                             {"c", at::arange(large / 4, at::kInt)},
                             {"empty", at::empty({0, 3}, at::kDouble)},
                             {"half", at::full({3}, 1.5, at::kHalf)},
                             {"transposed", at::arange(6, at::kLong).view({2, 3}).t()}};
  states["model"].values = {{"name", "a text\nof two lines"}, {"nothing", ""}};
  states["sampler"].values = {{"epoch", "3"}};
  return states;
}

TEST(Handover, GivesAllPartsToAllRanks) {
  run_ranks(3, [](ProcessGroup group) {
    // One tensor is larger than a message.
    const int64_t large = (int64_t{64} << 20) + 5;
    const States expected = some_states(large);
    const int source = 1;
    int64_t bytes = 0;
    const States got =
        hand_over(group, source, group.rank() == source ? expected : States{}, bytes);
    EXPECT_EQ(elastic::hash_of(got), elastic::hash_of(expected));
    EXPECT_GT(bytes, 2 * large);
    EXPECT_TRUE(at::equal(got.at("model").tensors.at("transposed"),
                          expected.at("model").tensors.at("transposed")));
  });
}

TEST(Handover, SaysHowFarALargeStateIs) {
  run_ranks(2, [](ProcessGroup group) {
    const bool sends = group.rank() == 0;
    States mine;
    for (const char* name : {"a", "b", "c", "d", "e"})
      mine["model"].tensors[name] = at::zeros({20'000'000}, at::kByte);
    const auto said = [&](int64_t large) {
      ::testing::internal::CaptureStderr();
      int64_t bytes = 0;
      hand_over(group, 0, sends ? mine : States{}, bytes, large);
      return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(said(1 << 28), "") << "not so large";
    const std::string text = said(1 << 20);
    EXPECT_EQ(std::ranges::count(text, '\n'), sends ? 5 : 0) << text;
    EXPECT_EQ(text.ends_with("brigade: 0.1 of 0.1 GB of state handed over\n"), sends)
        << text;
  });
}

}  // namespace
}  // namespace brigade
