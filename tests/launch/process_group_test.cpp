#include "brigade/process_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace brigade {
namespace {

class ProcessGroupRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroupRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(ProcessGroupRanks, AllReduceSums) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    at::Tensor x = at::full({5}, group.rank() + 1.0);
    group.all_reduce(x);
    EXPECT_EQ(x[0].item<double>(), group.size() * (group.size() + 1) / 2.0);
  });
}

TEST_P(ProcessGroupRanks, ExchangeGivesEveryRanksText) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    auto all = group.exchange("name", "rank " + std::to_string(group.rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
    for (int rank = 0; rank < group.size(); ++rank) EXPECT_EQ(all[rank], "rank " + std::to_string(rank));
  });
}

}  // namespace
}  // namespace brigade
