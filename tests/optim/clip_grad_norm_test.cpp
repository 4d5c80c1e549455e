// Clipping by the norm gives LibTorch's results.
#include <torch/torch.h>

#include "brigade/hooks.h"
#include "brigade/optimizer_in_backward.h"
#include "optim/fork.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

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

TEST(ClipGradNorm, IsLibTorchsUnderEveryKindOfHook) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* hook :
         {"", "allreduce", "fp16", "bf16", "quantize_per_channel", "int8", "int4", "fixed",
          "powersgd:rank=1,start=1", "small+int8"}) {
      for (const bool views : {false, true}) {
        Ddp ddp(make_fork(), group,
                {.bucket_cap_mb = kSmallBucket, .gradient_as_bucket_view = views});
        if (*hook) ddp->set_hook(make_hook(hook));
        for (int step = 0; step < 3; ++step) {
          ddp->zero_grad();
          backward(ddp, step, true);
          expect_clipped_alike(ddp, step == 1 ? 1e6 : 0.05);
        }
        EXPECT_NEAR(clip_grad_norm(ddp, 1e6), 0.05, 1e-4) << "clipped before";
      }
    }
  });
}

// A mask or GradScaler::unscale_ does so; no result of backward() may be kept.
TEST(ClipGradNorm, ChangesOfGradientsAfterTheBackwardPassCount) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* hook : {"", "allreduce", "fp16", "int8"}) {
      SCOPED_TRACE(hook);
      Ddp ddp(make_fork(), group, {.bucket_cap_mb = kSmallBucket});
      if (*hook) ddp->set_hook(make_hook(hook));
      ddp->zero_grad();
      backward(ddp, 0, true);
      {
        torch::NoGradGuard no_grad;
        auto last_row = ddp->module()->first->weight.grad()[-1];
        ASSERT_GT(last_row.abs().sum().item<double>(), 0);
        last_row.zero_();
      }
      expect_clipped_alike(ddp, 1e6);
      {
        torch::NoGradGuard no_grad;
        for (const auto& parameter : ddp->parameters()) parameter.grad().mul_(0.25);
      }
      expect_clipped_alike(ddp, 0.05);
      expect_clipped_alike(ddp, 1e6);
      EXPECT_THROW(clip_grad_norm(ddp, 0), ConfigError);
    }
  });
}

TEST(ClipGradNorm, UnusedParametersAndAccumulationAreCountedRight) {
  run_ranks(2, [](ProcessGroup group) {
    for (const bool unused : {false, true}) {
      Ddp ddp(make_fork(), group,
              {.find_unused_parameters = unused, .bucket_cap_mb = kSmallBucket});
      ddp->set_hook(make_hook("allreduce"));
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
