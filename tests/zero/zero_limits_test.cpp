// ZeRO with mixed precision and with uneven inputs.
#include "brigade/ddp_core.h"
#include "zero/zero_models.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

Setting in_bf16(bool shard_buckets) {
  Setting setting{.shard_buckets = shard_buckets, .steps = 8};
  setting.ddp.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
  return setting;
}

TEST(ZeroLimits, ThreeFormsTrainInMixedPrecisionLikeTheOptimizerOnEveryRank) {
  for (int ranks : {2, 3}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const How how : kZeroSteps)
        expect_same_training(group, in_bf16(/*shard_buckets=*/true), how);
    });
  }
}

TEST(ZeroLimits, WhatDoesNotGoWithMixedPrecisionIsRefusedWithTheReason) {
  run_ranks(2, [](ProcessGroup group) {
    const auto refused = [&](How how) {
      return thrown_text<ConfigError>([&] { Training(group, in_bf16(false), how); });
    };
    expect_contains(refused(How::reduce_scatter), "in their own dtype");
    expect_contains(refused(How::reduce_scatter), "hook_with_zero_step_interleaved");
    expect_contains(refused(How::after_last),
                    "hook_with_zero_step: with mixed_precision set shard_buckets");
    expect_contains(refused(How::interleaved),
                    "hook_with_zero_step_interleaved: with mixed_precision set");
  });
}

TEST(ZeroLimits, AStepAfterwardsIsRefusedInsideOfJoin) {
  run_ranks(2, [](ProcessGroup group) {
    Training zero(group, {}, How::step);
    zero.train(1);
    expect_contains(thrown_text<ConfigError>(
                        [&] { zero.ddp()->join([&] { zero.train(1 + group.rank()); }); }),
                    "hook_with_zero_step_interleaved or apply_zero_in_backward");
    zero.train(1);  // after the join it goes on
    torch::Tensor root = zero.net()->mixed.detach().clone(torch::MemoryFormat::Contiguous);
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, zero.net()->mixed));
  });
}

// Every form loads the state that any other has consolidated.
TEST(ZeroLimits, EveryFormGoesOnFromTheStateOfEveryOther) {
  const std::vector<How> forms{How::step, How::step_views, How::after_last,
                               How::interleaved, How::reduce_scatter};
  for (const How from : forms) {
    run_ranks(3, [&](ProcessGroup group) {
      const Setting setting{.hook = "in order"};
      Training first(group, setting, from);
      first.set_lr(0.02);
      first.train(3);
      OptimizerState whole;
      for (int rank = 0; rank < group.size(); ++rank) {
        OptimizerState mine = first.sharded().consolidate(rank);
        if (rank == group.rank()) whole = std::move(mine);
      }
      std::map<std::string, torch::Tensor> saved;
      for (const auto& item : first.net()->named_parameters())
        saved[item.key()] = item.value().detach().clone();
      first.train(3);
      for (const How to : forms) {
        Training second(group, setting, to);
        {
          torch::NoGradGuard no_grad;
          for (auto& item : second.net()->named_parameters())
            item.value().copy_(saved.at(item.key()));
        }
        second.sharded().load_consolidated(whole);
        EXPECT_EQ(second.sharded().lr(), 0.02);
        second.go_on_at(3);
        second.train(3);
        const auto expected = first.net()->named_parameters();
        for (const auto& item : second.net()->named_parameters())
          EXPECT_TRUE(torch::equal(item.value(), expected[item.key()]))
              << describe(from, setting) << " to " << describe(to, setting) << ": "
              << item.key();
      }
    });
  }
}

}  // namespace
}  // namespace brigade::testing
