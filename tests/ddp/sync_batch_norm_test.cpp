// Batch normalization over all ranks, and evaluation with each rank's own statistics.
#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "ddp/models.h"

namespace brigade::testing {
namespace {

namespace nn = torch::nn;

nn::Sequential normalized(const nn::BatchNormOptions& options) {
  torch::manual_seed(4);
  nn::Sequential net(nn::Linear(6, 5), nn::BatchNorm1d(options), nn::Tanh(),
                     nn::Linear(5, 3), nn::BatchNorm1d(3));
  net->to(torch::kDouble);
  return net;
}

// Rank r has r + 2 rows, so the shares are unequal.
torch::Tensor rows_of(const torch::Tensor& all, const ProcessGroup& group) {
  const int64_t first = group.rank() * (group.rank() + 3) / 2;
  return all.narrow(0, first, group.rank() + 2);
}

void expect_joined(const ProcessGroup& group, const nn::BatchNormOptions& options) {
  auto whole = normalized(options);
  auto net = normalized(options);
  EXPECT_EQ(convert_sync_batchnorm(*net, group), 2);
  EXPECT_EQ(convert_sync_batchnorm(*net, group), 0);
  EXPECT_EQ(net->named_parameters().keys(), whole->named_parameters().keys());
  EXPECT_EQ(net->named_buffers().keys(), whole->named_buffers().keys());
  for (int step = 0; step < 3; ++step) {
    const auto all = batch(step, group.size() * (group.size() + 3) / 2);
    auto mine = rows_of(all, group).clone().requires_grad_();
    auto joined = all.clone().requires_grad_();
    auto result = net->forward(mine);
    auto expected = whole->forward(joined);
    EXPECT_LE(distance(result, rows_of(expected, group)), 1e-10);
    net->zero_grad();
    whole->zero_grad();
    result.pow(3).sum().backward();
    expected.pow(3).sum().backward();
    EXPECT_LE(distance(mine.grad(), rows_of(joined.grad(), group)), 1e-10);
    for (auto& parameter : net->parameters()) group.all_reduce(parameter.mutable_grad());
    expect_same_gradients(*net, *whole, 1e-10);
    for (size_t i = 0; i < net->buffers().size(); ++i)
      EXPECT_LE(distance(net->buffers()[i], whole->buffers()[i]), 1e-10) << "buffer " << i;
  }
  net->eval();
  whole->eval();
  const auto all = batch(9, 7);
  EXPECT_LE(distance(net->forward(all), whole->forward(all)), 1e-10);
}

TEST(SyncBatchNorm, EqualsOneProcessOnTheJoinedBatch) {
  for (int ranks : {1, 3}) {
    run_ranks(ranks, [](ProcessGroup group) {
      expect_joined(group, nn::BatchNormOptions(5));
      expect_joined(group, nn::BatchNormOptions(5).momentum(std::nullopt).eps(1e-3));
      expect_joined(group, nn::BatchNormOptions(5).affine(false));
      expect_joined(group, nn::BatchNormOptions(5).track_running_stats(false));
      // One of the ranks has no images.
      SyncBatchNorm layer(nn::BatchNormOptions(2), group);
      layer->to(torch::kDouble);
      nn::BatchNorm2d alone(2);
      alone->to(torch::kDouble);
      const auto images = torch::rand({group.rank() == 0 ? 3 : 0, 2, 4, 4}, torch::kDouble);
      const auto result = layer(images);
      if (group.rank() == 0) {
        EXPECT_LE(distance(result, alone(images)), 1e-10);
      }
      EXPECT_THROW(layer(torch::ones({4, 3})), ConfigError);
    });
  }
}

// A page shows it.
torch::nn::Sequential normalized_over_all_ranks(const ProcessGroup& group) {
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::BatchNorm1d(16),
                            torch::nn::Linear(16, 3));
  convert_sync_batchnorm(*net, group);  // before the model is wrapped
  return net;
}

struct FixedImpl : nn::Module {
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
};
TORCH_MODULE(Fixed);

TEST(SyncBatchNorm, AMemberThatCannotBeReplacedIsNamed) {
  run_ranks(1, [](ProcessGroup group) {
    EXPECT_TRUE(normalized_over_all_ranks(group)->ptr(1)->as<SyncBatchNorm>());
    nn::ModuleList list(nn::BatchNorm1d(2), Fixed());
    expect_contains(thrown_text<ConfigError>([&] { convert_sync_batchnorm(*list, group); }),
                    "'1.norm' is a member of a module of another class");
    EXPECT_TRUE(list[0]->as<nn::BatchNorm1d>()) << "nothing is replaced then";
  });
}

TEST(Buffers, AreRankZerosOnEveryRankAfterSyncBuffers) {
  run_ranks(2, [](ProcessGroup group) {
    auto net = normalized(nn::BatchNormOptions(5));
    DistributedDataParallel ddp(net, group);
    const auto rows = share(batch(0, 8), group);
    ddp(rows).sum().backward();
    auto theirs = net->buffers()[0].clone();
    group.broadcast(theirs);
    EXPECT_EQ(torch::equal(theirs, net->buffers()[0]), group.rank() == 0);
    ddp->sync_buffers();
    EXPECT_TRUE(torch::equal(theirs, net->buffers()[0]));
  });
}

TEST(Buffers, BatchNormInHalvesWithoutBufferDtypeIsRefusedInWords) {
  run_ranks(1, [](ProcessGroup group) {
    nn::Sequential net(nn::Linear(6, 5), nn::BatchNorm1d(5));
    const auto make = [&](MixedPrecision dtypes) {
      DistributedDataParallel ddp(net, group, {.mixed_precision = dtypes});
      ddp(torch::ones({4, 6})).sum().backward();
    };
    expect_contains(
        thrown_text<ConfigError>([&] { make({.param_dtype = torch::kBFloat16}); }),
        "'1' normalizes batches");
    make({.param_dtype = torch::kBFloat16, .buffer_dtype = torch::kBFloat16});
  });
}

TEST(Conversion, ToDoubleAfterWrappingTrainsInDouble) {
  run_ranks(2, [](ProcessGroup group) {
    torch::manual_seed(2);
    nn::Sequential net(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 3));
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    ddp(share(batch(0, 8), group).to(torch::kFloat)).square().mean().backward();
    ddp->to(torch::kDouble);
    ddp->zero_grad();
    auto whole = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
    for (int step = 1; step < 4; ++step) {
      ddp->zero_grad();
      whole->zero_grad();
      ddp(share(batch(step, 8), group)).square().mean().backward();
      whole->forward(batch(step, 8)).square().mean().backward();
      expect_same_gradients(*net, *whole, 1e-12);
    }
  });
}

struct ComplexNetImpl : nn::Module {
  ComplexNetImpl() {
    torch::manual_seed(5);
    matrix = register_parameter("matrix", torch::randn({24, 20}, torch::kComplexFloat));
    bias = register_parameter("bias", torch::zeros({20}, torch::kComplexFloat));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::view_as_real(torch::matmul(x, matrix) + bias);
  }
  torch::Tensor matrix, bias;
};
TORCH_MODULE(ComplexNet);

torch::Tensor complex_rows(int rank) {
  torch::manual_seed(100 + rank);
  return torch::randn({8, 24}, torch::kComplexFloat);
}

TEST(ComplexGradients, AreAveragedByEveryHook) {
  run_ranks(2, [](ProcessGroup group) {
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;
      std::string spec(entry.name);
      if (spec.ends_with("powersgd")) spec += ":start=0,rank=64,min_rate=0.01";
      if (spec == "topk" || spec == "randomk") spec += ":ratio=1";
      SCOPED_TRACE(spec);
      ComplexNet net, exact;
      DistributedDataParallel ddp(net, group);
      ddp->set_hook(make_hook(spec));
      ddp(complex_rows(group.rank())).square().mean().backward();
      for (int rank = 0; rank < 2; ++rank)
        (exact(complex_rows(rank)).square().mean() / 2).backward();
      for (size_t i = 0; i < 2; ++i) {
        const auto mine = torch::view_as_real(net->parameters()[i].grad()).contiguous();
        const auto mean = torch::view_as_real(exact->parameters()[i].grad());
        const double tolerance = entry.tolerance < 1 ? 3 * entry.tolerance : 2e-3;
        EXPECT_LE(((mine - mean).norm() / mean.norm()).item<double>(), tolerance);
        auto theirs = mine.clone();
        group.broadcast(theirs);
        EXPECT_TRUE(torch::equal(mine, theirs)) << "replicas disagree";
      }
    }
  });
}

// Programs compiled with -Wextra -Werror may leave out members in an initializer, because
// every member has a default.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST(Initializers, MayNameSomeMembersOnly) {
  const DdpOptions ddp{.gradient_as_bucket_view = true};
  const ProcessGroupOptions group{.backend = "gloo"};
  const MixedPrecision precision{.param_dtype = torch::kBFloat16};
  const JoinOptions join{.throw_on_early_termination = true};
  const HookState state{.values = {{"a", "b"}}};
  const DdpModel model{.parameters = {}};
  EXPECT_TRUE(ddp.gradient_as_bucket_view && join.throw_on_early_termination);
  EXPECT_EQ(group.backend, "gloo");
  EXPECT_TRUE(precision.param_dtype && state.tensors.empty() && model.parameters.empty());
}
#pragma GCC diagnostic pop

}  // namespace
}  // namespace brigade::testing
