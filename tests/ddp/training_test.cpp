// Training on several ranks equals training on one with all of the data.
#include <tuple>

#include "ddp/models.h"

namespace brigade::testing {
namespace {

using TrainingCase = DdpSetting;
class Training : public ::testing::TestWithParam<TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, Training,
    ::testing::Values(TrainingCase{1, false, false}, TrainingCase{1, true, true},
                      TrainingCase{2, false, false}, TrainingCase{2, false, true},
                      TrainingCase{2, true, false}, TrainingCase{2, true, true},
                      TrainingCase{3, false, true}, TrainingCase{3, true, true},
                      TrainingCase{4, false, true}, TrainingCase{4, true, true}),
    [](const auto& info) { return name_of(info.param); });

DdpOptions training_options(const TrainingCase& c) {
  DdpOptions options;
  options.gradient_as_bucket_view = c.views;
  if (c.several_buckets) options.bucket_cap_mb = kSmallBucket;
  return options;
}

TEST_P(Training, EqualsTrainingOnOneProcessWithTheJoinedBatch) {
  run_ranks(GetParam().ranks, [](ProcessGroup group) {
    Net alone = seeded();
    Net net = seeded(group.rank() + 1);  // rank 0's weights win
    DistributedDataParallel ddp(net, group, training_options(GetParam()));
    torch::optim::SGD alone_sgd(alone->parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD sgd(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 6; ++step) {
      auto x = batch(step, 12);
      auto y = target(step, 12);
      alone->zero_grad();
      torch::mse_loss(alone(x), y).backward();
      ddp->zero_grad(/*set_to_none=*/step % 2 == 0);
      torch::mse_loss(ddp(share(x, group)), share(y, group)).backward();
      expect_same_gradients(*alone, *net);
      alone_sgd.step();
      sgd.step();
    }
    expect_same_parameters(*alone, *net);
    expect_equal_replicas(*net, group);
    auto log = ddp->logging_data();
    EXPECT_EQ(log.initial_bucket_bytes.size(), 1U);
    EXPECT_TRUE(log.has_rebuilt_buckets);
    EXPECT_EQ(log.bucket_bytes.size(), GetParam().several_buckets ? 3U : 1U);
  });
}

TEST_P(Training, AccumulatesUnderNoSyncAndSynchronisesAfterIt) {
  run_ranks(GetParam().ranks, [](ProcessGroup group) {
    Net alone = seeded();
    Net net = seeded();
    DistributedDataParallel ddp(net, group, training_options(GetParam()));
    for (int round = 0; round < 3; ++round) {
      alone->zero_grad();
      ddp->zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        auto x = batch(round * 3 + micro, 12);
        auto y = target(round * 3 + micro, 12);
        torch::mse_loss(alone(x), y).backward();
        auto pass = [&] {
          torch::mse_loss(ddp(share(x, group)), share(y, group)).backward();
        };
        if (micro < 2) {
          auto guard = ddp->no_sync();
          pass();
        } else {
          pass();
        }
      }
      expect_same_gradients(*alone, *net);
    }
  });
}

TEST(TrainingWithOptimizers, ZeroGradOfAnOptimizerWorksWithBucketViews) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
    torch::optim::Adam adam(ddp->parameters(), 0.01);
    for (bool set_to_none : {true, false}) {
      ddp(share(batch(0, 12), group)).sum().backward();
      zero_grad(adam, set_to_none);
      for (const auto& parameter : ddp->parameters()) {
        if (set_to_none) {
          EXPECT_FALSE(parameter.grad().defined());
        } else {
          EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
        }
      }
    }
  });
}

TEST(TrainingWithOptimizers, AGradientIsAViewOfABucketOnlyWhereAskedFor) {
  run_ranks(2, [](ProcessGroup group) {
    for (bool views : {false, true}) {
      Net net = seeded();
      DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = views});
      ddp(share(batch(0, 12), group)).sum().backward();
      auto parameters = net->parameters();
      EXPECT_EQ(parameters[0].grad().is_alias_of(parameters[1].grad()), views);
    }
  });
}

TEST(TrainingWithOptimizers, AListOfBucketCapsIsFollowedInOrder) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb_list = {0.0001, 1.0}});
    for (int step = 0; step < 3; ++step)
      ddp(share(batch(step, 12), group)).sum().backward();
    auto log = ddp->logging_data();
    ASSERT_EQ(log.bucket_bytes.size(), 2U);
    EXPECT_EQ(log.bucket_parameters[0],
              (std::vector<std::string>{"last.bias", "last.weight"}));
  });
}

TEST(TrainingModule, IsAModuleWithTheParametersBuffersAndModeOfTheWrappedOne) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    EXPECT_EQ(ddp->parameters().size(), 6U);
    EXPECT_TRUE(ddp->named_parameters().contains("module.first.weight"));
    ddp->eval();
    EXPECT_FALSE(net->is_training());
    ddp->train();
    EXPECT_TRUE(net->middle->is_training());
    EXPECT_EQ(ddp->name(), "DistributedDataParallel");
    EXPECT_EQ(ddp->module(), net.ptr());
  });
}

TEST(TrainingModule, IsSavedAndLoadedWithTorchSave) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    ddp(share(batch(0, 12), group)).sum().backward();
    std::stringstream file;
    torch::save(ddp, file);
    Net other_net = seeded(7);
    DistributedDataParallel other(other_net, group);
    torch::load(other, file);
    expect_same_parameters(*net, *other_net, 0);
    // The Reducer must still be attached to the loaded parameters.
    net->zero_grad();
    auto x = batch(3, 12);
    net(x).sum().backward();
    for (auto& parameter : net->parameters()) parameter.mutable_grad().div_(group.size());
    other(share(x, group)).sum().backward();
    expect_same_gradients(*net, *other_net);
  });
}

TEST(TrainingModule, TakesASharedPointerAndASequential) {
  run_ranks(2, [](ProcessGroup group) {
    auto pointer = std::make_shared<NetImpl>();
    DistributedDataParallel ddp(pointer, group);
    ddp->forward(share(batch(0, 12), group)).sum().backward();
    EXPECT_TRUE(pointer->parameters()[0].grad().defined());

    torch::nn::Sequential layers(torch::nn::Linear(6, 4), torch::nn::Tanh());
    layers->to(torch::kDouble);
    DistributedDataParallel sequential(layers, group);
    sequential->forward(share(batch(0, 12), group)).sum().backward();
    EXPECT_TRUE(layers->parameters()[0].grad().defined());
  });
}

TEST(TrainingModule, ResetMakesItTrainAgain) {
  run_ranks(2, [](ProcessGroup group) {
    Net alone = seeded();
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
    for (int step = 0; step < 2; ++step)
      ddp(share(batch(step, 12), group)).sum().backward();
    ddp->reset();
    EXPECT_FALSE(net->parameters()[0].grad().defined());
    for (int step = 0; step < 3; ++step) {
      alone->zero_grad();
      ddp->zero_grad();
      torch::mse_loss(alone(batch(step, 12)), target(step, 12)).backward();
      torch::mse_loss(ddp(share(batch(step, 12), group)), share(target(step, 12), group))
          .backward();
      expect_same_gradients(*alone, *net);
    }
  });
}

TEST(TrainingModule, LoggingDataHasBucketsAndTimes) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    for (int step = 0; step < 4; ++step)
      ddp(share(batch(step, 12), group)).sum().backward();
    auto log = ddp->logging_data();
    EXPECT_EQ(log.parameters, 6);
    EXPECT_EQ(log.parameter_bytes, 8 * (6 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3));
    EXPECT_GE(log.iterations, 3);
    EXPECT_GT(log.forward_compute.count(), 0);
    EXPECT_GT(log.backward_compute.count(), 0);
    EXPECT_GT(log.backward_communication.count(), 0);
    int64_t total = 0;
    for (int64_t bytes : log.bucket_bytes) total += bytes;
    EXPECT_EQ(total, log.parameter_bytes);
  });
}

TEST(TrainingModule, TheDebugLevelOfTorchDoesNotDisturb) {
  for (const char* level : {"INFO", "DETAIL"}) {
    setenv("TORCH_DISTRIBUTED_DEBUG", level, 1);
    run_ranks(2, [](ProcessGroup group) {
      Net net = seeded();
      DistributedDataParallel ddp(net, group);
      for (int step = 0; step < 3; ++step)
        ddp(share(batch(step, 12), group)).sum().backward();
      EXPECT_GE(ddp->logging_data().iterations, 2);
    });
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
  }
}

}  // namespace
}  // namespace brigade::testing
