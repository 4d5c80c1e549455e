#include "exchange/sharded_parameter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace brigade {
namespace {

using testing::run_ranks;

TEST(ShardedParameter, ShardsLieInTheOrderOfTheRanksAndAreAsEvenAsCanBe) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    std::vector<int64_t> left_over(static_cast<size_t>(ranks));
    for (size_t index = 0; index < static_cast<size_t>(2 * ranks); ++index) {
      for (const int64_t n : {0, 1, 2, 7, 40, 41}) {
        int64_t end = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const ShardRange range = shard_range(n, index, rank, ranks);
          ASSERT_EQ(range.begin, end);
          ASSERT_GE(range.length, n / ranks);
          ASSERT_LE(range.length, (n + ranks - 1) / ranks);
          end += range.length;
          if (n == 1) left_over[static_cast<size_t>(rank)] += range.length;
        }
        ASSERT_EQ(end, n);
      }
    }
    for (const int64_t each : left_over) EXPECT_EQ(each, 2);
  }
}

TEST(ShardedParameter, ShardsFollowAParameterToOtherMemoryAndStayTheSameTensors) {
  run_ranks(1, [](ProcessGroup) {
    at::Tensor weight = at::arange(10, at::kFloat).view({2, 5});
    const ShardedParameter sharded("weight", weight, 0, 0, 2);
    const at::Tensor second = sharded.shard(1);
    EXPECT_TRUE(at::equal(second, at::arange(5, 10, at::kFloat)));
    weight.set_data(at::ones({2, 5}));
    EXPECT_TRUE(sharded.shard(1).is_same(second));
    EXPECT_TRUE(at::equal(second, at::ones({5})));
    EXPECT_TRUE(second.is_alias_of(weight));
  });
}

}  // namespace
}  // namespace brigade
