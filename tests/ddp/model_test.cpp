// The constructor's checks and copies, buffers, inference, and replaced groups.
#include <unistd.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ddp/models.h"

namespace brigade::testing {
namespace {

torch::nn::Sequential layers(std::vector<int64_t> widths) {
  torch::nn::Sequential net;
  for (size_t i = 1; i < widths.size(); ++i) {
    net->push_back(torch::nn::Linear(widths[i - 1], widths[i]));
  }
  return net;
}
const RankOptions kShort{.timeout = std::chrono::seconds(10),
                         .wall = std::chrono::seconds(30)};

TEST(Construction, ShapesThatDifferAreAnErrorOnEveryRankThatNamesParameterAndRanks) {
  run_ranks(
      3,
      [](ProcessGroup group) {
        auto net = layers({4, group.rank() == 1 ? 5 : 6, 2});
        auto text =
            thrown_text<MismatchError>([&] { DistributedDataParallel ddp(net, group); });
        expect_contains(text, "the ranks have different models or options");
        expect_contains(text, "'parameter 0.weight: Float [6, 4] on cpu' on ranks 0, 2\n");
        expect_contains(text, "'parameter 0.weight: Float [5, 4] on cpu' on ranks 1\n");
        // The group still works.
        auto right = layers({4, 2});
        DistributedDataParallel ddp(right, group);
        ddp(torch::ones({1, 4})).sum().backward();
      },
      kShort);
}

// Gloo has no such type, and LibTorch reports that with a stack trace.
TEST(Construction, WhatLibTorchThrowsComesOutAsAnErrorThatNamesTheRank) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        auto net = layers({4, 2});
        net->register_buffer("scale", at::zeros({3}, at::kFloat8_e4m3fn));
        const std::string text =
            thrown_text<Error>([&] { DistributedDataParallel ddp(net, group); });
        // Both ranks fail; all get the error of the first.
        EXPECT_TRUE(text.starts_with("rank 0: ") || text.starts_with("rank 1: ")) << text;
        expect_contains(text, ": broadcast: Invalid scalar type");
        EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      },
      kShort);
}

TEST(Construction, CountsNamesDtypesAndGradientsThatDifferAreErrorsToo) {
  auto check = [](std::function<void(torch::nn::Sequential&)> change, std::string part) {
    run_ranks(
        2,
        [&](ProcessGroup group) {
          auto net = layers({4, 3, 2});
          if (group.rank() == 1) change(net);
          expect_contains(
              thrown_text<MismatchError>([&] { DistributedDataParallel ddp(net, group); }),
              part);
        },
        kShort);
  };
  check([](auto& net) { net->push_back(torch::nn::Linear(2, 2)); },
        "'parameter 2.weight: Float [2, 2] on cpu' on ranks 1");
  check([](auto& net) { net->to(torch::kDouble); }, "Double");
  check([](auto& net) { net->parameters()[1].requires_grad_(false); }, "no gradient");
  check([](auto& net) { net->push_back(torch::nn::BatchNorm1d(2)); },
        "'parameter 2.weight: Float [2] on cpu' on ranks 1");
}

TEST(Construction, OptionsThatDifferAreAnErrorOnEveryRank) {
  auto check = [](DdpOptions options, std::string part) {
    run_ranks(
        2,
        [&](ProcessGroup group) {
          auto net = layers({4, 2});
          auto make = [&] {
            DistributedDataParallel ddp(net, group,
                                        group.rank() == 1 ? options : DdpOptions{});
          };
          expect_contains(thrown_text<MismatchError>(make), part);
        },
        kShort);
  };
  check({.find_unused_parameters = true}, "find_unused_parameters");
  check({.static_graph = true}, "static_graph");
  check({.bucket_cap_mb = 3}, "bucket_cap_mb");
  check({.parameters_to_ignore = {"0.weight"}}, "'parameter 0.bias: ");
  check({.gradient_as_bucket_view = true}, "gradient_as_bucket_view");
  check({.broadcast_buffers = false}, "broadcast_buffers");
  check({.init_sync = false}, "init_sync");
  check({.mixed_precision = MixedPrecision{.param_dtype = torch::kBFloat16}},
        "mixed_precision");
  check({.check_replicas_every = 5}, "check_replicas_every");
  check({.bucket_cap_mb_list = {1, 4}}, "bucket_cap_mb_list");
  check({.first_buckets = {{"0.bias"}, {"0.weight"}}}, "first_buckets");
  check({.skip_all_reduce_unused_params = true}, "skip_all_reduce_unused_params");
}

TEST(Construction, AModelWithNothingToTrainIsRefusedAndTheOtherRanksHearOfIt) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        auto net = layers({4, 2});
        if (group.rank() == 1) {
          for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
          expect_contains(
              thrown_text<ConfigError>([&] { DistributedDataParallel ddp(net, group); }),
              "no parameter of the model needs a gradient");
        } else {
          auto text =
              thrown_text<MismatchError>([&] { DistributedDataParallel ddp(net, group); });
          expect_contains(text, "refused on rank 1: no parameter of the model");
        }
      },
      kShort);
}

TEST(Construction, BadOptionsAreNamedWithTheirValue) {
  run_ranks(1, [](ProcessGroup group) {
    auto check = [&](DdpOptions options, const std::string& part) {
      auto net = layers({4, 2});
      auto make = [&] { DistributedDataParallel ddp(net, group, options); };
      expect_contains(thrown_text<ConfigError>(make), part);
    };
    check({.bucket_cap_mb = 0}, "bucket_cap_mb is 0");
    check({.bucket_cap_mb = -1}, "bucket_cap_mb is -1");
    check({.bucket_cap_mb = NAN}, "bucket_cap_mb is nan");
    check({.bucket_cap_mb_list = {1, -2}}, "bucket_cap_mb_list is -2");
    check({.parameters_to_ignore = {"9.weight"}}, "'9.weight'");
    check({.parameters_to_ignore = {"0.weight", "0.bias"}}, "nothing to train");
    auto net = layers({4, 2});
    expect_contains(
        thrown_text<ConfigError>([&] { DistributedDataParallel ddp(net, ProcessGroup()); }),
        "empty process group");
  });
}

TEST(Construction, CopiesParametersAndBuffersOfRankZeroUnlessToldNotTo) {
  for (bool sync : {true, false}) {
    run_ranks(2, [sync](ProcessGroup group) {
      torch::manual_seed(group.rank());
      torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
      net->buffers()[0].fill_(group.rank());
      DistributedDataParallel ddp(net, group, {.init_sync = sync});
      auto root = net->parameters()[0].detach().clone();
      group.broadcast(root);
      EXPECT_EQ(torch::equal(root, net->parameters()[0]), sync || group.rank() == 0);
      EXPECT_EQ(net->buffers()[0][0].item<float>(), sync ? 0 : group.rank());
    });
  }
}

TEST(IgnoredParameters, KeepTheirOwnValuesAndGradients) {
  run_ranks(2, [](ProcessGroup group) {
    torch::manual_seed(group.rank());
    auto net = layers({4, 3, 2});
    auto mine = net->parameters()[0].detach().clone();
    DistributedDataParallel ddp(net, group, {.parameters_to_ignore = {"0.weight"}});
    EXPECT_TRUE(torch::equal(mine, net->parameters()[0]));
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp(torch::full({1, 4}, group.rank() + 1.0)).sum().backward();
    }
    auto mean = net->parameters()[0].grad().clone();
    group.all_reduce(mean);
    EXPECT_FALSE(torch::allclose(mean / 2, net->parameters()[0].grad()));
    auto other = net->parameters()[1].grad().clone();
    group.broadcast(other);
    EXPECT_TRUE(torch::equal(other, net->parameters()[1].grad()));
    ddp->zero_grad();
    EXPECT_FALSE(net->parameters()[0].grad().defined());
  });
}

struct NormImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
};
TORCH_MODULE(Norm);

torch::Tensor rows_of(int rank) { return batch(rank, 4).to(torch::kFloat) * (rank + 1); }

TEST(Buffers, OfRankZeroReachAllBeforeEachPassThatTrains) {
  run_ranks(2, [](ProcessGroup group) {
    Norm net, alone;
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      ddp(rows_of(group.rank())).pow(3).sum().backward();
      // On every rank: rank 0's statistics of the earlier steps, and its own of this one.
      alone(rows_of(group.rank()));
      EXPECT_LE(distance(alone->norm->running_mean, net->norm->running_mean), 1e-6);
      EXPECT_LE(distance(alone->norm->running_var, net->norm->running_var), 1e-6);
      for (auto& buffer : alone->buffers()) group.broadcast(buffer);
    }
  });
}

TEST(Buffers, StayEachRanksOwnWhereNotBroadcast) {
  run_ranks(2, [](ProcessGroup group) {
    Norm net, alone;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    for (int step = 0; step < 3; ++step) {
      ddp(rows_of(group.rank())).pow(3).sum().backward();
      alone(rows_of(group.rank()));
    }
    EXPECT_LE(distance(alone->norm->running_mean, net->norm->running_mean), 1e-6);
    EXPECT_GT(net->norm->running_mean.abs().sum().item<float>(), 0);
  });
}

TEST(Buffers, AreNotBroadcastAfterAPassThatOnlyAccumulated) {
  run_ranks(2, [](ProcessGroup group) {
    Norm net;
    DistributedDataParallel ddp(net, group);
    auto traffic = [&] { return group.c10d()->getSequenceNumberForGroup(); };
    {
      auto guard = ddp->no_sync();
      ddp(rows_of(0)).pow(3).sum().backward();  // broadcasts: the first pass
      auto before = traffic();
      ddp(rows_of(0)).pow(3).sum().backward();
      EXPECT_EQ(traffic(), before);
    }
    auto before = traffic();
    ddp(rows_of(0)).pow(3).sum().backward();
    EXPECT_GT(traffic(), before);
  });
}

TEST(Inference, WithoutGradientsMakesNoTrafficAndOneRankMayDoItAlone) {
  run_ranks(2, [](ProcessGroup group) {
    for (DdpOptions options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true},
                               DdpOptions{.static_graph = true}}) {
      Norm net;
      DistributedDataParallel ddp(net, group, options);
      auto traffic = [&] { return group.c10d()->getSequenceNumberForGroup(); };
      auto infer = [&] {
        auto before = traffic();
        torch::NoGradGuard no_grad;
        if (group.rank() == 0) ddp(rows_of(0));
        ddp->eval();
        if (group.rank() == 0) ddp(rows_of(1));
        ddp->train();
        EXPECT_EQ(traffic(), before);
      };
      infer();
      for (int step = 0; step < 3; ++step) {
        auto before = traffic();
        ddp(rows_of(group.rank())).pow(3).sum().backward();
        EXPECT_GT(traffic(), before);
        infer();
      }
    }
  });
}

TEST(Groups, AReplacedGroupIsUsedFromTheNextPassOn) {
  run_ranks(4, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    auto check = [&](const ProcessGroup& now, int step, int first_rank) {
      ddp->zero_grad();
      ddp(batch(step * 7 + group.rank(), 4)).sum().backward();
      Net alone = seeded();
      for (int rank = first_rank; rank < first_rank + now.size(); ++rank) {
        alone(batch(step * 7 + rank, 4)).sum().div(now.size()).backward();
      }
      expect_same_gradients(*alone, *net);
    };
    for (int step = 0; step < 3; ++step) check(group, step, 0);
    auto half = group.new_subgroups(2);
    ddp->update_process_group(half);
    for (int step = 3; step < 6; ++step) check(half, step, group.rank() / 2 * 2);
    ddp->update_process_group(group.duplicate());
    for (int step = 6; step < 9; ++step) check(group, step, 0);
  });
}

TEST(Groups, AfterABackwardThatFailedNothingPassesUntilResetWhichHelps) {
  int failed[2];
  ASSERT_EQ(pipe(failed), 0);
  run_ranks(
      2,
      [&](ProcessGroup group) {
        Net net = seeded();
        DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
        for (int step = 0; step < 2; ++step) ddp(batch(group.rank(), 4)).sum().backward();
        char byte = 0;
        if (group.rank() == 0) {  // the other does not come: the time limit of 1 s ends it
          auto pass = [&] { ddp(batch(0, 4)).sum().backward(); };
          EXPECT_THROW(pass(), std::exception);
          EXPECT_THROW(pass(), std::exception);
          ASSERT_EQ(write(failed[1], &byte, 1), 1);
        } else {
          ASSERT_EQ(read(failed[0], &byte, 1), 1);
        }
        ddp->reset();
        Net alone = seeded();
        for (int step = 0; step < 3; ++step) {
          ddp->zero_grad();
          alone->zero_grad();
          ddp(batch(step + group.rank(), 4)).sum().backward();
          for (int rank = 0; rank < 2; ++rank) {
            alone(batch(step + rank, 4)).sum().div(2).backward();
          }
          expect_same_gradients(*alone, *net);
        }
      },
      {.timeout = std::chrono::seconds(1), .wall = std::chrono::seconds(30)});
  close(failed[0]);
  close(failed[1]);
}

TEST(Groups, RemovedHooksLeaveGradientsLocalUntilReset) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    ddp(batch(group.rank(), 4)).sum().backward();
    ddp->remove_autograd_hooks();
    ddp->zero_grad();
    ddp(batch(group.rank(), 4)).sum().backward();
    Net alone = seeded();
    alone(batch(group.rank(), 4)).sum().backward();
    expect_same_gradients(*alone, *net);

    ddp->reset();
    ddp(batch(group.rank(), 4)).sum().backward();
    alone->zero_grad();
    for (int rank = 0; rank < 2; ++rank) alone(batch(rank, 4)).sum().div(2).backward();
    expect_same_gradients(*alone, *net);
  });
}

TEST(Groups, ModelsAndGroupsMayGoInAnyOrder) {
  run_ranks(2, [](ProcessGroup group) {
    auto net = layers({4, 2});
    {
      auto own = group.duplicate();
      DistributedDataParallel ddp(net, own);
      own = ProcessGroup();
      ddp(torch::ones({1, 4})).sum().backward();
      ddp->remove_autograd_hooks();
    }
    net->zero_grad();
    DistributedDataParallel again(net, group, {.gradient_as_bucket_view = true});
    auto keep = net->parameters()[0];
    again(torch::ones({1, 4})).sum().backward();
    again = nullptr;
    EXPECT_GT(keep.grad().abs().sum().item<float>(),
              0);  // views outlive the buckets' owner
  });
}

TEST(Buckets, ThatDifferAreAnErrorOnEveryRankThatNamesTheParameter) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        Net net = seeded();
        DistributedDataParallel ddp(net, group);
        const auto refused = [&](const std::string& part) {
          auto text =
              thrown_text<MismatchError>([&] { ddp(batch(0, 4)).sum().backward(); });
          expect_contains(text, "the ranks have different buckets");
          expect_contains(text, part);
        };
        ddp(batch(0, 4)).sum().backward();
        // From here on the buckets differ. The sum would be that of a matrix and its
        // transpose.
        torch::Tensor weight = net->middle->weight;
        if (group.rank() == 1) weight.set_data(weight.detach().t().contiguous().t());
        refused("middle.weight, Double [16, 16] on cpu, strides [1, 16]' on ranks 1");
        refused("'bucket 0: middle.weight, Double [16, 16] on cpu' on ranks 0");
      },
      kShort);
}

TEST(Groups, LoadingOrConvertingTheModelKeepsItSynchronised) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    ddp(batch(0, 4)).sum().backward();
    ddp->zero_grad();
    ddp->to(torch::kFloat);
    ddp(batch(group.rank(), 4).to(torch::kFloat)).sum().backward();
    EXPECT_EQ(net->first->weight.grad().scalar_type(), torch::kFloat);
    auto root = net->first->weight.grad().clone();
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, net->first->weight.grad()));
  });
}

}  // namespace
}  // namespace brigade::testing
