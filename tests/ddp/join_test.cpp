// Uneven inputs: the ranks have different numbers of batches.
#include "ddp/models.h"

namespace brigade::testing {
namespace {

constexpr double kJoinRate = 0.1;

torch::Tensor loss_of(const torch::Tensor& y, int step, int rank) {
  return (y * torch::cos(torch::tensor(step + 3.0 * rank, torch::kDouble))).mean();
}
torch::Tensor input_of(int step, int rank) { return batch(step * 10 + rank, 4); }

// One process computes what join() promises.
void train_alone(Net& net, const std::vector<int>& counts, bool divide_by_all) {
  torch::optim::SGD sgd(net->parameters(), kJoinRate);
  for (int step = 0; step < *std::max_element(counts.begin(), counts.end()); ++step) {
    net->zero_grad();
    int active = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (step >= counts[rank]) continue;
      ++active;
      loss_of(net(input_of(step, rank)), step, rank).backward();
    }
    double divisor = divide_by_all ? static_cast<double>(counts.size()) : active;
    for (auto& parameter : net->parameters()) parameter.mutable_grad().div_(divisor);
    sgd.step();
  }
}

struct Split {
  std::vector<int> counts;
  bool divide_by_all;
  DdpOptions options;
};

void check(const Split& split) {
  run_ranks(static_cast<int>(split.counts.size()), [&](ProcessGroup group) {
    Net alone = seeded();
    train_alone(alone, split.counts, split.divide_by_all);
    Net net = seeded();
    DistributedDataParallel ddp(net, group, split.options);
    torch::optim::SGD sgd(ddp->parameters(), kJoinRate);
    auto loop = [&] {
      for (int step = 0; step < split.counts[group.rank()]; ++step) {
        ddp->zero_grad();
        loss_of(ddp(input_of(step, group.rank())), step, group.rank()).backward();
        sgd.step();
      }
    };
    ddp->join(loop, {.divide_by_initial_world_size = split.divide_by_all});
    expect_same_parameters(*alone, *net);
    expect_equal_replicas(*net, group);

    // Afterwards it trains as before.
    ddp->zero_grad();
    alone->zero_grad();
    torch::mse_loss(ddp(share(batch(7, 12), group)), share(target(7, 12), group))
        .backward();
    torch::mse_loss(alone(batch(7, 12)), target(7, 12)).backward();
    expect_same_gradients(*alone, *net);
  });
}

TEST(Join, EverySplitOfInputsOverTwoRanksTrainsOnAllOfThem) {
  for (bool divide_by_all : {true, false}) {
    for (auto [a, b] : {std::pair{0, 0}, {0, 3}, {3, 0}, {1, 3}, {3, 1}, {2, 3}, {3, 3}}) {
      SCOPED_TRACE(std::to_string(a) + " and " + std::to_string(b));
      check({{a, b}, divide_by_all, {}});
    }
  }
}

TEST(Join, SplitsOverThreeAndFourRanksTrainOnAllOfTheInputs) {
  check({{0, 2, 4}, true, {}});
  check({{4, 1, 2}, false, {}});
  check({{1, 3, 0, 3}, true, {}});
  check({{3, 1, 2, 1}, false, {}});
}

TEST(Join, WorksWithSeveralBucketsAndBucketViews) {
  DdpOptions options{.bucket_cap_mb = kSmallBucket, .gradient_as_bucket_view = true};
  check({{1, 4}, true, options});
  check({{4, 0, 2}, false, options});
}

TEST(Join, WorksWhereUnusedParametersAreLookedFor) {
  DdpOptions options{.find_unused_parameters = true, .bucket_cap_mb = kSmallBucket};
  check({{1, 4}, true, options});
  check({{4, 0, 2}, false, options});
}

TEST(Join, WorksWithAStaticGraph) {
  DdpOptions options{.static_graph = true, .bucket_cap_mb = kSmallBucket};
  check({{1, 4}, true, options});
  check({{4, 1}, true, options});
  check({{0, 4}, true, options});
  check({{4, 0, 2}, false, options});
}

struct JoinedNormImpl : torch::nn::Module {
  JoinedNormImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
};
TORCH_MODULE(JoinedNorm);

TEST(Join, BuffersComeFromARankThatStillHasInput) {
  run_ranks(3, [](ProcessGroup group) {
    JoinedNorm net = seeded<JoinedNorm>();
    DistributedDataParallel ddp(net, group);
    const int count = 3 - group.rank();  // rank 0 has the most
    auto loop = [&] {
      for (int step = 0; step < count; ++step) {
        ddp(input_of(step, group.rank())).sum().backward();
      }
    };
    ddp->join(loop);
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 3);
    for (const auto& buffer : net->buffers()) {
      auto root = buffer.clone();
      group.broadcast(root);
      EXPECT_TRUE(torch::equal(root, buffer));
    }
  });
}

TEST(Join, PassesThatOnlyAccumulateAreFollowedToo) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    auto loop = [&] {
      for (int step = 0; step < (group.rank() == 0 ? 2 : 6); ++step) {
        std::optional<NoSync> guard;
        if (step % 2 == 0) guard.emplace(ddp->no_sync());
        loss_of(ddp(input_of(step, group.rank())), step, group.rank()).backward();
      }
    };
    ddp->join(loop);
    // The later steps of rank 1, alone but divided by two, come on top of the common ones.
    if (group.rank() == 1) {
      Net alone = seeded();
      for (int step = 0; step < 2; ++step) {
        for (int rank = 0; rank < 2; ++rank) {
          loss_of(alone(input_of(step, rank)), step, rank).backward();
        }
      }
      for (auto& p : alone->parameters()) p.mutable_grad().div_(2);
      for (int round = 1; round < 3; ++round) {
        for (int step = 2 * round; step < 2 * round + 2; ++step) {
          loss_of(alone(input_of(step, 1)), step, 1).backward();
        }
        for (auto& p : alone->parameters()) p.mutable_grad().div_(2);
      }
      expect_same_gradients(*alone, *net);
    }
  });
}

TEST(Join, ThrowsOnEveryRankWhenToldToStopAtTheFirstEnd) {
  run_ranks(3, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    int steps = 0;
    auto loop = [&] {
      for (; steps < (group.rank() == 1 ? 2 : 4); ++steps) {
        ddp(input_of(steps, group.rank())).sum().backward();
      }
    };
    auto text = thrown_text<UnevenInputsError>(
        [&] { ddp->join(loop, {.throw_on_early_termination = true}); });
    expect_contains(text, "no more on rank 1");
    EXPECT_EQ(steps, 2);

    Net alone = seeded();
    ddp->zero_grad();
    torch::mse_loss(ddp(share(batch(7, 12), group)), share(target(7, 12), group))
        .backward();
    torch::mse_loss(alone(batch(7, 12)), target(7, 12)).backward();
    expect_same_gradients(*alone, *net);
  });
}

TEST(Join, DoesNotThrowWhenAllEndTogether) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    auto loop = [&] {
      for (int step = 0; step < 3; ++step) ddp(input_of(step, 0)).sum().backward();
    };
    ddp->join(loop, {.throw_on_early_termination = true});
    EXPECT_EQ(ddp->logging_data().iterations, 2);
  });
}

TEST(Join, RefusesToBeNestedAndIsLeftByAnException) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    auto nested = [&] { ddp->join([&] { ddp->join([] {}); }); };
    expect_contains(thrown_text<ConfigError>(nested), "inside of join()");
    ddp(input_of(0, 0)).sum().backward();  // no collective of join is left over
    EXPECT_TRUE(net->parameters()[0].grad().defined());
  });
}

TEST(Join, OptionsThatDifferAreAnErrorOnEveryRank) {
  for (const JoinOptions& other : {JoinOptions{.divide_by_initial_world_size = false},
                                   JoinOptions{.throw_on_early_termination = true}}) {
    run_ranks(2, [&](ProcessGroup group) {
      Net net = seeded();
      DistributedDataParallel ddp(net, group);
      const auto join = [&] {
        ddp->join([] { FAIL() << "the loop has begun"; },
                  group.rank() == 1 ? other : JoinOptions{});
      };
      expect_contains(thrown_text<MismatchError>(join), "different options of join()");
      ddp->join([&] { ddp(batch(1, 4)).sum().backward(); });  // the model is as before
    });
  }
}

}  // namespace
}  // namespace brigade::testing
