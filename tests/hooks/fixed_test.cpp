// The hook "fixed" gives the same bits whatever the buckets.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

class FixedHook : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FixedHook, ::testing::Values(2, 3, 4));

TEST_P(FixedHook, GivesTheSumInTheOrderOfTheRanksWithAnyBuckets) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    // The second tensor is longer than a segment.
    const Shapes shapes{{17, 23}, {(1 << 21) + 77}, {1}, {30, 30}, {5}};
    for (double megabytes : {testing::kOneBucketEach, 0.004, 64.0}) {
      Rig rig(group, "fixed", shapes, at::kFloat, {.bucket_cap_mb = megabytes});
      for (int64_t step = 0; step < 2; ++step) {
        const auto gradients = rig.train(step);
        for (size_t index = 0; index < shapes.size(); ++index) {
          at::Tensor sum = at::zeros(shapes[index]);
          for (int rank = 0; rank < group.size(); ++rank)
            sum = rank == 0
                      ? testing::coefficient(shapes[index], at::kFloat, 0, step, index)
                      : sum + testing::coefficient(shapes[index], at::kFloat, rank, step,
                                                   index);
          EXPECT_TRUE(at::equal(gradients[index], sum / group.size()))
              << "parameter " << index << ", buckets of " << megabytes << " MB";
        }
      }
    }
  });
}

}  // namespace
}  // namespace brigade
