// Optimizers on a GPU: many parameters in one kernel.
#include <ATen/ATen.h>

#include "cuda/on_gpu.h"

namespace brigade {
namespace {

using optim::Optimizer;
using optim::ParameterStep;
using testing::kGpu;

const char* const kSpecs[] = {
    "adam",
    "adam:lr=0.01,weight_decay=0.1,maximize=1",
    "adam:amsgrad=1",
    "adamw:lr=0.01,weight_decay=0.1",
    "adamw:amsgrad=1,beta1=0.5",
    "sgd:lr=0.1",
    "sgd:lr=0.1,momentum=0.9,dampening=0.5,weight_decay=0.01",
    "sgd:lr=0.1,momentum=0.9,nesterov=1,maximize=1",
    "rmsprop:lr=0.01",  // has no kernel
};

// Makes some of odd sizes, empty or not contiguous, and enough for several launches.
std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
  at::manual_seed(1);
  std::vector<at::Tensor> list;
  const auto add = [&](at::Tensor values) { list.push_back(values.to(dtype).to(kGpu)); };
  for (int64_t size = 1; size < 150; size += 3) add(at::randn({size, 3}));
  add(at::randn({300, 641}));
  add(at::randn({0}));
  add(at::randn({4, 3, 5, 7}).contiguous(at::MemoryFormat::ChannelsLast));
  return list;
}

// Puts gradients one behind the other, as in a bucket, whatever their alignment becomes.
std::vector<at::Tensor> make_gradients(const std::vector<at::Tensor>& parameters,
                                       int64_t step) {
  at::manual_seed(static_cast<uint64_t>(100 + step));
  int64_t total = 1;
  for (const at::Tensor& each : parameters) total += each.numel();
  const at::Tensor flat = at::randn({total}).to(parameters[0].options());
  std::vector<at::Tensor> list;
  int64_t offset = 1;
  for (const at::Tensor& each : parameters) {
    list.push_back(flat.as_strided(each.sizes(), each.strides(), offset));
    offset += each.numel();
  }
  return list;
}

TEST(CudaOptimizers, ManyAtOnceAreTheBitsOfOneByOneAndTheNumbersOfTheCpu) {
  testing::run_alone_on_cuda([] {
    for (const char* spec : kSpecs) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
        SCOPED_TRACE(c10::str(spec, " of ", dtype));
        const auto together = make_parameters(dtype), alone = make_parameters(dtype);
        std::vector<at::Tensor> on_cpu;
        for (const at::Tensor& each : alone) on_cpu.push_back(each.cpu().to(at::kDouble));
        const auto many = optim::make_optimizer(spec), single = optim::make_optimizer(spec),
                   reference = optim::make_optimizer(spec);
        for (int64_t step = 0; step < 5; ++step) {
          const auto gradients = make_gradients(together, step);
          std::vector<ParameterStep> steps;
          for (size_t i = 0; i < together.size(); ++i) {
            // Parameters that begin later have other step counts.
            if (i % 7 == 3 && step < 2) continue;
            steps.push_back({together[i], gradients[i]});
            single->step_param(alone[i], gradients[i]);
            reference->step_param(on_cpu[i], gradients[i].cpu().to(at::kDouble));
          }
          many->step_params(steps);
        }
        const double tolerance = dtype == at::kDouble  ? 1e-10
                                 : dtype == at::kFloat ? 1e-5
                                                       : 0.05;
        for (size_t i = 0; i < together.size(); ++i) {
          EXPECT_TRUE(at::equal(together[i], alone[i])) << "parameter " << i;
          EXPECT_TRUE(at::allclose(together[i].cpu().to(at::kDouble), on_cpu[i], tolerance,
                                   tolerance))
              << "parameter " << i;
        }
      }
    }
  });
}

TEST(CudaOptimizers, InTheBackwardPassTheyGiveTheNumbersOfAStepAfterIt) {
  testing::run_cuda_ranks("nccl", [](ProcessGroup group) {
    const testing::Shapes shapes{{300, 41}, {7}, {200, 41}, {41}};
    for (const char* spec : kSpecs) {
      SCOPED_TRACE(spec);
      const auto make = [&] { return testing::bag_on_gpu(shapes, at::kFloat); };
      testing::BagDdp during(make(), group, {.bucket_cap_mb = 0.02});
      testing::BagDdp after(make(), group, {.bucket_cap_mb = 0.02});
      for (auto* ddp : {&during, &after})
        for (const at::Tensor& each : (*ddp)->module()->parameters())
          each.data().fill_(0.5);
      optim::apply_optimizer_in_backward(during->core(), optim::make_optimizer(spec));
      const auto optimizer = optim::make_optimizer(spec);
      for (int64_t step = 0; step < 6; ++step) {
        const auto inputs = testing::coefficients_on_gpu(shapes, group.rank(), step);
        during->forward(inputs).backward();
        after->zero_grad();
        after->forward(inputs).backward();
        for (const at::Tensor& each : after->module()->parameters())
          optimizer->step_param(each, each.grad());
      }
      const auto got = during->module()->parameters();
      const auto wanted = after->module()->parameters();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(at::allclose(got[i], wanted[i], 1e-5, 1e-6)) << "parameter " << i;
    }
  });
}

double norm_of(const std::vector<at::Tensor>& parameters) {
  double squares = 0;
  for (const at::Tensor& each : parameters)
    squares += each.grad().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

// Buckets end on different streams; the norm is that of all of them.
TEST(CudaOptimizers, InTheBackwardPassTheyClipByTheNormOfAllBuckets) {
  for (const char* backend : {"nccl", "gloo"}) {
    testing::run_cuda_ranks(backend, [](ProcessGroup group) {
      const testing::Shapes shapes{{300, 41}, {7}, {200, 41}, {41}, {500, 300}};
      constexpr double kMost = 0.5;
      for (const char* hook : {"allreduce", "int8"}) {
        SCOPED_TRACE(hook);
        const auto make = [&] { return testing::bag_on_gpu(shapes, at::kFloat); };
        testing::BagDdp during(make(), group, {.bucket_cap_mb = 0.02});
        testing::BagDdp after(make(), group, {.bucket_cap_mb = 0.02});
        during->set_hook(make_hook(hook));
        after->set_hook(make_hook(hook));
        optim::apply_optimizer_in_backward(during->core(),
                                           optim::make_optimizer("sgd:lr=0.1"), {},
                                           {.clip_grad_norm = kMost});
        const auto optimizer = optim::make_optimizer("sgd:lr=0.1");
        const auto got = during->module()->parameters();
        const auto wanted = after->module()->parameters();
        for (int64_t step = 0; step < 6; ++step) {
          const auto inputs = testing::coefficients_on_gpu(shapes, group.rank(), step);
          during->forward(inputs).backward();
          after->zero_grad();
          after->forward(inputs).backward();
          const double norm = norm_of(wanted);
          EXPECT_NEAR(optim::clip_grad_norm(after, kMost), norm, 1e-6 * norm);
          EXPECT_GT(norm, kMost);
          EXPECT_NEAR(norm_of(wanted), kMost, 1e-4 * kMost);
          for (const at::Tensor& each : wanted) optimizer->step_param(each, each.grad());
        }
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::allclose(got[i], wanted[i], 1e-5, 1e-6)) << "parameter " << i;
      }
    });
  }
}

}  // namespace
}  // namespace brigade
