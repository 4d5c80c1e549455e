// The statements of docs/hooks.md about checkpoints.
#include "../examples/checkpoint.h"

#include <gtest/gtest.h>

#include "hooks/bag.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

const Shapes kShapes{{17, 23}, {5}, {30, 30}};
constexpr const char* kSpec = "powersgd:start=1,rank=2";

std::string file_of(const std::string& folder, int rank) {
  return folder + "/hook_" + std::to_string(rank) + ".pt";
}

TEST(Checkpoint, AResumedRunEqualsOneThatWasNeverStopped) {
  testing::TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    Rig whole(group, kSpec, kShapes), first(group, kSpec, kShapes);
    for (int64_t step = 0; step < 3; ++step) whole.train(step), first.train(step);
    save_hook_state(first.ddp->hook()->state(), file_of(folder.path(), group.rank()));

    DdpOptions options{.bucket_cap_mb = testing::kOneBucketEach};
    options.first_buckets = first.ddp->logging_data().bucket_parameters;
    Rig second(group, kSpec, kShapes, at::kFloat, options);
    second.ddp->hook()->load_state(load_hook_state(file_of(folder.path(), group.rank())));
    for (int64_t step = 3; step < 6; ++step) {
      const auto expected = whole.train(step), resumed = second.train(step);
      for (size_t index = 0; index < expected.size(); ++index)
        EXPECT_TRUE(at::equal(expected[index], resumed[index])) << "step " << step;
    }
  });
}

TEST(Checkpoint, ThreeRanksGoOnWhereTwoHaveStopped) {
  testing::TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    Rig rig(group, kSpec, kShapes);
    for (int64_t step = 0; step < 3; ++step) rig.train(step);
    save_hook_state(rig.ddp->hook()->state(), file_of(folder.path(), group.rank()));
  });
  run_ranks(3, [&](ProcessGroup group) {
    Rig rig(group, kSpec, kShapes);
    std::vector<HookState> shards;
    for (int rank = 0; rank < 2; ++rank)
      shards.push_back(load_hook_state(file_of(folder.path(), rank)));
    rig.ddp->hook()->load_state(combine_states(shards));
    for (int64_t step = 3; step < 6; ++step) {
      for (at::Tensor gradient : rig.train(step)) {
        at::Tensor first = gradient.clone();
        group.broadcast(first, 0);
        EXPECT_TRUE(at::equal(first, gradient)) << "replicas disagree";
      }
    }
  });
}

TEST(Checkpoint, TheStateOfOtherOptionsIsRefused) {
  run_ranks(1, [&](ProcessGroup group) {
    Rig rig(group, kSpec, kShapes);
    rig.train(0);
    EXPECT_THROW(make_hook("powersgd:rank=1")->load_state(rig.ddp->hook()->state()),
                 MismatchError);
  });
}

}  // namespace
}  // namespace brigade
