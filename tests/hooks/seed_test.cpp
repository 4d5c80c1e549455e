// The scenarios of PyTorch's own test of these hooks: one parameter of 40 x 20, output p *
// x^(1 + rank), every hook compared with no hook.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::run_ranks;

struct TaskImpl : torch::nn::Module {
  TaskImpl() : p(register_parameter("p", at::ones({40, 20}))) {}
  at::Tensor forward(const at::Tensor& x) { return p * x; }
  at::Tensor p;
};

struct TestModelImpl : torch::nn::Module {
  TestModelImpl() : t0(register_module("t0", std::make_shared<TaskImpl>())) {}
  at::Tensor forward(const at::Tensor& x, int rank) {
    return t0->forward(at::pow(x, 1 + rank));
  }
  std::shared_ptr<TaskImpl> t0;
};

at::Tensor gradient(ProcessGroup group, std::optional<DDPCommHookType> type) {
  auto net = std::make_shared<TestModelImpl>();
  DistributedDataParallel ddp(net, group);
  if (type) register_ddp_comm_hook(*type, ddp, group);
  at::manual_seed(47);
  at::Tensor x = at::randn({40, 20});
  for (int step = 0; step < 3; ++step) {  // after buckets were rebuilt, too
    ddp->zero_grad();
    ddp->forward(x, group.rank()).mean().backward();
  }
  return net->t0->p.grad().clone();
}

class SeedRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SeedRanks, ::testing::Values(2, 3, 4));

void expect_close(DDPCommHookType type, double rtol, double atol, int ranks) {
  run_ranks(ranks, [=](ProcessGroup group) {
    at::Tensor reference = gradient(group, std::nullopt);
    at::Tensor hooked = gradient(group, type);
    // The original's bound is for two ranks; x^(1 + rank) grows with more, and a
    // quantizer's steps with it.
    const double bound =
        group.size() == 2
            ? atol
            : atol * std::max(1.0, 100 * reference.abs().max().item<double>());
    EXPECT_TRUE(at::allclose(hooked, reference, rtol, bound))
        << (hooked - reference).abs().max();
  });
}

TEST_P(SeedRanks, AllreduceHookEqualsNoHook) {
  expect_close(DDPCommHookType::ALLREDUCE, 1e-5, 0, GetParam());
}
TEST_P(SeedRanks, Fp16HookIsClose) {
  expect_close(DDPCommHookType::FP16_COMPRESS, 1e-5, 1e-4, GetParam());
}
TEST_P(SeedRanks, Bf16HookIsClose) {
  expect_close(DDPCommHookType::BF16_COMPRESS, 1e-5, 1e-4, GetParam());
}
TEST_P(SeedRanks, QuantizePerTensorHookIsClose) {
  expect_close(DDPCommHookType::QUANTIZE_PER_TENSOR, 1e-5, 1e-4, GetParam());
}
TEST_P(SeedRanks, QuantizePerChannelHookIsClose) {
  expect_close(DDPCommHookType::QUANTIZE_PER_CHANNEL, 1e-5, 1e-4, GetParam());
}
TEST_P(SeedRanks, PowerSgdBeforeItsStartEqualsNoHook) {
  expect_close(DDPCommHookType::POWER_SGD, 1e-5, 0, GetParam());
  expect_close(DDPCommHookType::BATCHED_POWER_SGD_RANK2, 1e-5, 0, GetParam());
}

TEST_P(SeedRanks, NoopHookLeavesTheLocalGradientWhichAManualAverageMakesTheMean) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    at::Tensor reference = gradient(group, std::nullopt);
    at::Tensor local = gradient(group, DDPCommHookType::NOOP);
    EXPECT_FALSE(at::allclose(local, reference));
    group.all_reduce(local);
    EXPECT_TRUE(at::allclose(local / group.size(), reference, 1e-5, 0));
  });
}

TEST(Seed, IsLastIsTrueForTheLastBucketOnly) {
  run_ranks(2, [](ProcessGroup group) {
    torch::nn::Sequential net;
    for (int layer = 0; layer < 11; ++layer)
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(400, 400).bias(false)));
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1.0});
    std::vector<std::pair<int64_t, bool>> seen;
    ddp->set_hook(make_hook("watching", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      seen.emplace_back(bucket.index(), bucket.is_last());
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    }));
    for (int step = 0; step < 3; ++step) {
      seen.clear();
      ddp->forward(at::ones({2, 400})).sum().backward();
      if (step > 0) {
        ASSERT_GE(seen.size(), 4u) << "buckets are made after the first step";
      }
      for (size_t index = 0; index < seen.size(); ++index) {
        EXPECT_EQ(seen[index].first, static_cast<int64_t>(index));
        EXPECT_EQ(seen[index].second, index + 1 == seen.size());
      }
    }
  });
}

}  // namespace
}  // namespace brigade
