// Ranks that drift apart are detected.
#include "ddp/models.h"
#include "engine/replica_hashes.h"

namespace brigade::testing {
namespace {

void pass(DistributedDataParallel<NetImpl>& ddp, const ProcessGroup& group, int step) {
  ddp->zero_grad();
  torch::mse_loss(ddp(share(batch(step, 12), group)), share(target(step, 12), group))
      .backward();
  torch::NoGradGuard no_grad;
  for (auto& parameter : ddp->parameters()) parameter -= 0.1 * parameter.grad();
}

TEST(Replicas, ThatDriftApartAreAnErrorOnAllRanksThatNamesRankAndParameter) {
  run_ranks(3, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.check_replicas_every = 3});
    for (int step = 0; step < 7; ++step) pass(ddp, group, step);  // compared twice
    // Changes the last bit of one number, in the step after a comparison.
    torch::Tensor weight = net->middle->weight.detach();
    if (group.rank() == 1) weight[3][5] = std::nextafter(weight[3][5].item<double>(), 9.0);
    pass(ddp, group, 7);
    pass(ddp, group, 8);
    const auto text = thrown_text<MismatchError>([&] { pass(ddp, group, 9); });
    expect_contains(text, "rank 1 differs from ranks 0, 2, first in the parameter");
    // A gradient that differs because of one replica changes all replicas alike.
    expect_contains(text, "'middle.weight'");
    // With rank 0's parameters on all ranks, training goes on.
    ddp->reset();
    for (int step = 0; step < 7; ++step) pass(ddp, group, step);
    expect_equal_replicas(*net, group);
  });
}

TEST(Replicas, AreNotComparedWhereNobodyAskedNorWhereTheyOnlyAccumulate) {
  run_ranks(2, [](ProcessGroup group) {
    for (const int64_t every : {0, 2}) {
      Net net = seeded();
      DistributedDataParallel ddp(net, group, {.check_replicas_every = every});
      torch::Tensor weight = net->middle->weight.detach();
      if (group.rank() == 1) weight += 1;
      if (every == 0) {
        for (int step = 0; step < 5; ++step) pass(ddp, group, step);
        continue;
      }
      const auto paused = ddp->no_sync();
      for (int step = 0; step < 5; ++step) ddp(batch(step, 4)).sum().backward();
    }
  });
}

TEST(Replicas, ABadNumberOfPassesIsRefused) {
  run_ranks(1, [](ProcessGroup group) {
    Net net = seeded();
    const auto make = [&] {
      DistributedDataParallel ddp(net, group, {.check_replicas_every = -1});
    };
    expect_contains(thrown_text<ConfigError>(make), "check_replicas_every is -1");
  });
}

TEST(Replicas, TheLargerPartCountsAsTheOthersAndOfEqualPartsRankZeros) {
  using engine::describe_drift;
  const std::vector<std::string> names{"a", "b"};
  EXPECT_EQ(describe_drift(names, {{1, 2}, {1, 3}, {1, 3}, {1, 3}}),
            "rank 0 differs from ranks 1, 2, 3, first in the parameter 'b'");
  EXPECT_EQ(describe_drift(names, {{1, 2}, {7, 3}}),
            "rank 1 differs from rank 0, first in the parameter 'a'");
  EXPECT_EQ(describe_drift(names, {{1, 2}, {8, 2}, {1, 2}, {9, 2}}),
            "ranks 1, 3 differ from ranks 0, 2, first in the parameter 'a'");
}

TEST(Replicas, EveryBitOfEveryKindOfTensorCounts) {
  run_ranks(1, [](ProcessGroup) {
    const at::Tensor base = at::arange(24, at::kDouble).view({2, 3, 4}) - 7;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                       at::kLong, at::kComplexFloat}) {
      for (at::Tensor one : {base, base.transpose(0, 2), base.expand({5, 2, 3, 4})}) {
        one = one.to(dtype);
        const auto before =
            engine::hash_tensors({one, one.clone(at::MemoryFormat::Preserve)});
        EXPECT_EQ(before[0], before[1]) << dtype;
        for (int64_t place = 0; place < one.numel(); ++place) {
          at::Tensor other = one.clone(at::MemoryFormat::Preserve);
          at::Tensor change = at::zeros({one.numel()}, at::kDouble);
          change[place] = 1;
          other.add_(change.view(one.sizes()).to(dtype));
          EXPECT_NE(engine::hash_tensors({other})[0], before[0])
              << dtype << " at " << place;
        }
      }
    }
    EXPECT_EQ(engine::hash_tensors({at::empty({0})}).size(), 1U);
  });
}

}  // namespace
}  // namespace brigade::testing
