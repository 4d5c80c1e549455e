// Clipping by the norm is LibTorch's, whoever measures it.
#include "brigade/optim/clip_grad_norm.h"

#include <torch/torch.h>

#include "brigade/hooks/registry.h"
#include "optim/fork.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

double norm_of(const std::vector<torch::Tensor>& parameters) {
  double squares = 0;
  for (const auto& parameter : parameters) {
    const double norm = parameter.grad().to(torch::kDouble).norm().item<double>();
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

void expect_clipped_alike(Ddp& ddp, double max_norm) {
  std::vector<torch::Tensor> theirs;
  for (const auto& parameter : ddp->parameters()) {
    theirs.push_back(parameter.detach().clone());
    theirs.back().mutable_grad() = parameter.grad().clone();
  }
  const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
  const double norm = clip_grad_norm(ddp, max_norm);
  torch::Tensor of_rank_0 = torch::full({1}, norm, torch::kDouble);
  ddp->group().broadcast(of_rank_0, 0);
  EXPECT_EQ(norm, of_rank_0.item<double>()) << "ranks would clip differently";
  EXPECT_NEAR(norm, expected, 1e-6 * expected);
  for (size_t i = 0; i < theirs.size(); ++i) {
    const auto mine = ddp->parameters()[i].grad();
    EXPECT_TRUE(torch::allclose(mine, theirs[i].grad(), 1e-6, 1e-9)) << i;
  }
}

TEST(ClipGradNorm, IsLibTorchsWithAMeasuredNormAndWithout) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* hook :
         {"", "allreduce", "fp16", "bf16", "quantize_per_channel", "int8", "int4", "fixed",
          "powersgd:rank=1,start=1", "small+int8"}) {
      for (const bool views : {false, true}) {
        Ddp ddp(make_fork(), group,
                {.bucket_cap_mb = kSmallBucket, .gradient_as_bucket_view = views});
        if (*hook) ddp->set_hook(measure_norm(make_hook(hook)));
        for (int step = 0; step < 3; ++step) {
          ddp->zero_grad();
          backward(ddp, step, true);
          expect_clipped_alike(ddp, step == 1 ? 1e6 : 0.05);
        }
        EXPECT_NEAR(clip_grad_norm(ddp, 1e6), 0.05, 1e-4) << "clipped, then measured anew";
      }
    }
  });
}

// The measured norm is used: gradients that are overwritten where no sample lies would
// otherwise be seen.
TEST(ClipGradNorm, MeasuredNormsNeedNoPassAndChangedGradientsAreFound) {
  run_ranks(2, [](ProcessGroup group) {
    Ddp ddp(make_fork(), group, {.bucket_cap_mb = kSmallBucket});
    ddp->set_hook(measure_norm(make_hook("fp16")));
    ddp->zero_grad();
    backward(ddp, 0, true);
    const double norm = norm_of(ddp->parameters());
    auto last_value = ddp->module()->first->weight.grad().view({-1})[-1];
    const float before = last_value.item<float>();
    {
      torch::NoGradGuard no_grad;
      last_value.fill_(100);
      EXPECT_NEAR(clip_grad_norm(ddp, 1e6), norm, 1e-6 * norm) << "not the measured norm";
      last_value.fill_(before);
      for (const auto& parameter : ddp->parameters()) parameter.grad().mul_(0.25);
    }
    EXPECT_NEAR(clip_grad_norm(ddp, 1e6), norm / 4, 1e-6 * norm) << "as unscale_ does";
    EXPECT_THROW(clip_grad_norm(ddp, 0), ConfigError);
    EXPECT_THROW(measure_norm(nullptr), ConfigError);
  });
}

struct Product : torch::nn::Module {
  Product() { weight = register_parameter("weight", torch::ones({3})); }
  torch::Tensor forward(const torch::Tensor& x) { return (weight * x).sum(); }
  torch::Tensor weight;
};

// What is looked at is so small that clipping does not change it.
TEST(ClipGradNorm, ClippedGradientsAreMeasuredAnewWhereNoSampleHasChanged) {
  run_ranks(2, [](ProcessGroup group) {
    DistributedDataParallel ddp(std::make_shared<Product>(), group);
    ddp->set_hook(measure_norm(make_hook("allreduce")));
    const float tiny = 2 * std::numeric_limits<float>::denorm_min();
    ddp->forward(torch::tensor({tiny, 3.F, 4.F})).backward();
    EXPECT_NEAR(clip_grad_norm(ddp, 4), 5, 1e-5);
    ASSERT_EQ(ddp->parameters()[0].grad()[0].item<float>(), tiny);
    EXPECT_NEAR(clip_grad_norm(ddp, 1e6), 4, 1e-5);
  });
}

TEST(ClipGradNorm, UnusedParametersAndAccumulationAreCountedRight) {
  run_ranks(2, [](ProcessGroup group) {
    for (const bool unused : {false, true}) {
      Ddp ddp(make_fork(), group,
              {.find_unused_parameters = unused, .bucket_cap_mb = kSmallBucket});
      ddp->set_hook(measure_norm(make_hook("allreduce")));
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        {
          auto guard = ddp->no_sync();
          backward(ddp, 2 * step, true);
        }
        backward(ddp, 2 * step + 1, !unused || group.rank() == 0);
        expect_clipped_alike(ddp, 0.05);
      }
    }
  });
}

}  // namespace
}  // namespace brigade::testing
