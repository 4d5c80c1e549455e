// Every hook on CUDA tensors, over NCCL and over Gloo.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "cuda/on_gpu.h"
#include "hooks/cases.h"
#include "hooks/scripted_tuner.h"

namespace brigade {
namespace {

using testing::bag_on_gpu;
using testing::coefficients_on_gpu;
using testing::kGpu;
using testing::run_cuda_ranks;
using testing::Shapes;
using testing::Structure;

using Case = testing::HookCase;

std::vector<Case> cases() {
  std::vector<Case> list = testing::table_cases();
  testing::leave_out_noop(list);
  list.push_back({"powersgd:start=1,rank=4,batch=1",
                  testing::kLowRankTolerance,
                  {Structure::matrix, 4}});
  list.push_back({"fp16+allreduce", 2e-3, {}});
  list.push_back({"small+int8", 1.5e-2, {}});
  list.push_back(
      {"powersgd:start=0,rank=2,rounds=1", testing::kOwing, {Structure::matrix, 2}});
  return list;
}

std::vector<at::Tensor> train(DistributedDataParallel<testing::BagImpl>& ddp,
                              const std::vector<at::Tensor>& inputs) {
  ddp->zero_grad();
  ddp->forward(inputs).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : ddp->module()->parameters_in_order)
    gradients.push_back(parameter.grad());
  return gradients;
}

// Computes value by value, in float32, on the CPU.
at::Tensor mean_on_cpu(const std::vector<int64_t>& shape, int ranks, int64_t step,
                       size_t index) {
  at::Tensor sum = testing::coefficient(shape, at::kFloat, 0, step, index).clone();
  for (int rank = 1; rank < ranks; ++rank)
    sum += testing::coefficient(shape, at::kFloat, rank, step, index);
  return sum / ranks;
}

class CudaHooks : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, CudaHooks, ::testing::Values("nccl", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaHooks, EveryHookAveragesAndAgreesWithAnyNumberOfBuckets) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    for (const Case& c : cases()) {
      for (int64_t buckets : {1, 2, 5, 12}) {
        SCOPED_TRACE(c.spec + " with " + std::to_string(buckets) + " buckets over " +
                     group.backend());
        Shapes shapes;
        for (int64_t index = 0; index < buckets; ++index)
          shapes.push_back({33 + index, 41});
        DistributedDataParallel ddp(bag_on_gpu(shapes, at::kFloat), group,
                                    {.bucket_cap_mb = testing::kOneBucketEach});
        // The Reducer may use one bucket in its first pass, before it makes the final ones.
        train(ddp, coefficients_on_gpu(shapes, group.rank(), 0, c.kind));
        ddp->set_hook(make_hook(c.spec));
        for (int64_t step = 0; step < 4; ++step) {
          std::vector<at::Tensor> inputs =
              coefficients_on_gpu(shapes, group.rank(), step, c.kind);
          const bool poison = step == 2 && group.rank() == 1;
          if (poison) inputs[0].view({-1})[3] = NAN;
          const auto gradients = train(ddp, inputs);
          double off = 0, size = 0;
          for (size_t index = 0; index < shapes.size(); ++index) {
            at::Tensor theirs = gradients[index].clone();
            group.broadcast(theirs, 0);
            const bool finite = at::isfinite(gradients[index]).all().item<bool>();
            if (step == 2) {
              EXPECT_TRUE(index != 0 || !finite) << "hidden from a rank";
              continue;
            }
            EXPECT_TRUE(finite) << "step " << step;
            EXPECT_TRUE(at::equal(theirs, gradients[index])) << "replicas disagree";
            const at::Tensor exact =
                testing::exact_mean(shapes[index], at::kFloat, 2, step, index, c.kind);
            off += (gradients[index].cpu().to(at::kDouble) - exact)
                       .pow(2)
                       .sum()
                       .item<double>();
            for (int rank = 0; rank < 2; ++rank) {
              size +=
                  testing::coefficient(shapes[index], at::kFloat, rank, step, index, c.kind)
                      .to(at::kDouble)
                      .pow(2)
                      .sum()
                      .item<double>() /
                  2;
            }
          }
          if (step != 2) {
            EXPECT_LE(std::sqrt(off / size), c.tolerance) << "step " << step;
          }
        }
      }
    }
  });
}

TEST_P(CudaHooks, ACheckpointInTheMiddleChangesNoBit) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{64, 64}, {700}, {40, 30}};
    for (const char* spec :
         {"int8", "int4", "topk:ratio=0.1", "randomk:ratio=0.1", "powersgd:start=0,rank=2",
          "powersgd:start=0,rank=2,rounds=1", "batched_powersgd:start=0"}) {
      SCOPED_TRACE(spec);
      const auto inputs = [&](int64_t step) {
        return coefficients_on_gpu(shapes, group.rank(), step);
      };
      DistributedDataParallel whole(bag_on_gpu(shapes, at::kFloat), group,
                                    {.bucket_cap_mb = testing::kOneBucketEach});
      whole->set_hook(make_hook(spec));
      for (int64_t step = 0; step < 3; ++step) train(whole, inputs(step));
      DdpOptions as_before{.bucket_cap_mb = testing::kOneBucketEach};
      as_before.first_buckets = whole->logging_data().bucket_parameters;
      DistributedDataParallel resumed(bag_on_gpu(shapes, at::kFloat), group, as_before);
      resumed->set_hook(make_hook(spec));
      resumed->hook()->load_state(whole->hook()->state());
      for (int64_t step = 3; step < 5; ++step) {
        const auto expected = train(whole, inputs(step)),
                   got = train(resumed, inputs(step));
        for (size_t index = 0; index < shapes.size(); ++index)
          EXPECT_TRUE(at::equal(got[index], expected[index])) << step;
      }
    }
  });
}

// The windows are exact, int8, exact, int4; after an exact step no residual is carried.
TEST_P(CudaHooks, AutoIsFollowedByAllRanksAndPaysWhatItOwes) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{40, 30}, {30}, {17, 23}, {300}};
    DistributedDataParallel ddp(bag_on_gpu(shapes, at::kFloat), group,
                                {.bucket_cap_mb = testing::kOneBucketEach});
    ddp->set_hook(testing::scripted_auto(group));
    std::vector<at::Tensor> sums;  // the results' sum, less the expected one
    for (const auto& shape : shapes) sums.push_back(at::zeros(shape, at::kDouble));
    for (int64_t step = 0; step < 4 * kAutoWindow; ++step) {
      SCOPED_TRACE(step);
      const auto gradients = train(ddp, coefficients_on_gpu(shapes, group.rank(), step));
      double off = 0;
      for (size_t index = 0; index < shapes.size(); ++index) {
        at::Tensor first = gradients[index].clone();
        group.broadcast(first, 0);
        EXPECT_TRUE(at::equal(first, gradients[index])) << "replicas disagree";
        sums[index] += gradients[index].cpu() -
                       testing::exact_mean(shapes[index], at::kFloat, 2, step, index);
        off += sums[index].norm().item<double>();
      }
      EXPECT_EQ(off > 1e-4, step / kAutoWindow % 2 == 1) << off;
    }
    if (group.rank() == 0) {
      EXPECT_EQ(ddp->hook_stats().history,
                (std::vector<std::string>{"step 8: trying int8", "step 16: back",
                                          "step 24: int4"}));
    }
  });
}

HookState moved(HookState state, at::Device device) {
  for (auto& [key, tensor] : state.tensors) tensor = tensor.to(device);
  return state;
}

// A checkpoint is read into host memory, and so is state from another rank.
TEST_P(CudaHooks, StateOfOneDeviceLoadsOnTheOther) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{64, 64}, {700}, {40, 30}};
    std::vector<Case> all = cases();
    for (const char* spec : {"powersgd:start=0,rank=6", "batched_powersgd:start=0,rank=2"})
      all.push_back({spec, 1, {}});
    for (const Case& c : all) {
      SCOPED_TRACE(c.spec);
      const auto inputs = [&](int64_t step) {
        return coefficients_on_gpu(shapes, group.rank(), step, c.kind);
      };
      DistributedDataParallel whole(bag_on_gpu(shapes, at::kFloat), group);
      whole->set_hook(make_hook(c.spec));
      for (int64_t step = 0; step < 3; ++step) train(whole, inputs(step));
      DdpOptions as_before{};
      as_before.first_buckets = whole->logging_data().bucket_parameters;
      DistributedDataParallel resumed(bag_on_gpu(shapes, at::kFloat), group, as_before);
      resumed->set_hook(make_hook(c.spec));
      resumed->hook()->load_state(moved(whole->hook()->state(), at::kCPU));
      if (group.backend() == "gloo") {
        auto bag = std::make_shared<testing::BagImpl>(shapes, at::kFloat);
        DistributedDataParallel on_cpu(bag, group, as_before);
        on_cpu->set_hook(make_hook(c.spec));
        on_cpu->hook()->load_state(whole->hook()->state());
        std::vector<at::Tensor> there;
        for (const at::Tensor& each : inputs(3)) there.push_back(each.cpu());
        for (const at::Tensor& gradient : train(on_cpu, there))
          EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
      }
      for (int64_t step = 3; step < 5; ++step) {
        const auto expected = train(whole, inputs(step)),
                   got = train(resumed, inputs(step));
        for (size_t index = 0; index < shapes.size(); ++index)
          EXPECT_TRUE(at::allclose(got[index], expected[index], 1e-4, 1e-5)) << step;
      }
    }
  });
}

TEST_P(CudaHooks, FixedGivesTheBitsOfTheSumOnTheCpu) {
  for (const int ranks : {2, 3}) {
    run_cuda_ranks(
        GetParam(),
        [](ProcessGroup group) {
          // The second tensor is longer than a segment.
          const Shapes shapes{{17, 23}, {(1 << 21) + 77}, {1}, {30, 30}};
          for (const double megabytes : {testing::kOneBucketEach, 64.0}) {
            DistributedDataParallel ddp(bag_on_gpu(shapes, at::kFloat), group,
                                        {.bucket_cap_mb = megabytes});
            ddp->set_hook(make_hook("fixed"));
            for (int64_t step = 0; step < 2; ++step) {
              const auto gradients =
                  train(ddp, coefficients_on_gpu(shapes, group.rank(), step));
              for (size_t index = 0; index < shapes.size(); ++index)
                EXPECT_TRUE(
                    at::equal(gradients[index].cpu(),
                              mean_on_cpu(shapes[index], group.size(), step, index)))
                    << "parameter " << index << ", buckets of " << megabytes;
            }
          }
        },
        ranks);
  }
}

// A device mesh's groups may have any ranks of a host. Groups made from them use the device
// that the program has chosen, not the one of their position in the group.
TEST(CudaGroups, OnesMadeFromAWrappedGroupUseTheCurrentDevice) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    if (cuda.deviceCount() < 2) GTEST_SKIP() << "one GPU is every rank's";
    const c10::Device other(at::kCUDA, static_cast<c10::DeviceIndex>(1 - group.rank()));
    cuda.setDevice(other);
    const ProcessGroup made = ProcessGroup::wrap(group.c10d()).duplicate();
    EXPECT_EQ(made.c10d()->getBoundDeviceId(), other);
    EXPECT_EQ(cuda.getDevice(), other);
    at::Tensor one = at::ones({1}, other);
    made.all_reduce(one);
    EXPECT_EQ(one.item<float>(), 2);
  });
}

TEST_P(CudaHooks, AnOptimizerInTheBackwardPassStepsAsItDoesAfterIt) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{64, 64}, {700}, {40, 30}, {128, 33}};
    for (const char* spec : {"allreduce", "int8", "powersgd:start=0,rank=2"}) {
      for (const bool views : {false, true}) {
        SCOPED_TRACE(std::string(spec) + (views ? " with views" : ""));
        const auto trained = [&](bool in_backward) {
          auto bag = bag_on_gpu(shapes, at::kFloat);
          DistributedDataParallel ddp(
              bag, group,
              {.bucket_cap_mb = testing::kOneBucketEach, .gradient_as_bucket_view = views});
          ddp->set_hook(make_hook(spec));
          auto adam = std::make_shared<optim::Adam>(optim::AdamOptions{.lr = 0.1});
          if (in_backward) optim::apply_optimizer_in_backward(ddp, adam);
          for (int64_t step = 0; step < 4; ++step) {
            const auto gradients =
                train(ddp, coefficients_on_gpu(shapes, group.rank(), step));
            for (size_t index = 0; index < shapes.size(); ++index) {
              EXPECT_EQ(gradients[index].defined(), !in_backward);
              if (!in_backward)
                adam->step_param(bag->parameters_in_order[index], gradients[index]);
            }
          }
          return bag->parameters_in_order;
        };
        const auto after = trained(false), inside = trained(true);
        for (size_t index = 0; index < shapes.size(); ++index)
          EXPECT_TRUE(at::equal(after[index], inside[index])) << index;
      }
    }
  });
}

// Each rank trains locally, then they average: parameters, averagers and DiLoCo's exchanges
// are on the GPU.
TEST_P(CudaHooks, RanksThatMeetRarelyEndWithTheSameBits) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Shapes shapes{{64, 64}, {700}, {40, 30}};
    const ProcessGroup alone = group.new_subgroups(1);
    const auto inputs = [&](int64_t step) {
      return coefficients_on_gpu(shapes, group.rank(), step);
    };
    const auto same = [&](const std::vector<at::Tensor>& parameters) {
      bool equal = true;
      for (const at::Tensor& parameter : parameters) {
        at::Tensor first = parameter.detach().clone();
        group.broadcast(first, 0);
        equal = equal && at::equal(first, parameter.detach());
      }
      return equal || group.rank() == 0;
    };
    DistributedDataParallel ddp(bag_on_gpu(shapes, at::kFloat), group);
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    optim::LocalSGD local(ddp, optimizer,
                          {.warmup_steps = 2, .period = 3, .subgroup = alone});
    for (int64_t step = 0; step < 8; ++step) {
      train(ddp, inputs(step));
      local.step();
      const bool met = step < 2 || (step - 2) % 3 == 0;
      EXPECT_TRUE(same(ddp->parameters()) == met || group.rank() == 0) << step;
    }
    local.finish();
    EXPECT_TRUE(same(ddp->parameters()));
    for (const char* spec : {"allreduce", "int8", "powersgd:start=0,rank=2"}) {
      SCOPED_TRACE(spec);
      auto bag = bag_on_gpu(shapes, at::kFloat);
      torch::optim::AdamW inner(bag->parameters(), 1e-2);
      optim::DiLoCo diloco(*bag, inner, group,
                           {.period = 4,
                            .fragments = 2,
                            .delay = 1,
                            .mixing = 0.5,
                            .hook = make_hook(spec)});
      for (int64_t step = 0; step < 11; ++step) {
        bag->zero_grad();
        bag->forward(inputs(step)).backward();
        diloco.step();
      }
      std::vector<at::Tensor> global;
      for (auto& [key, tensor] : diloco.state().tensors) global.push_back(tensor);
      EXPECT_TRUE(same(global));
      diloco.finish();
      EXPECT_TRUE(same(bag->parameters()));
    }
  });
}

// Two layers and a frozen one between them.
torch::nn::Sequential layers_on_gpu() {
  at::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 8));
  for (auto& parameter : net[2]->parameters()) parameter.requires_grad_(false);
  net->to(kGpu);
  return net;
}

TEST_P(CudaHooks, MixedPrecisionTrainsInHalvesAndLeavesFullPrecision) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      for (bool views : {false, true}) {
        torch::nn::Sequential net = layers_on_gpu();
        DistributedDataParallel ddp(
            net, group,
            {.mixed_precision = MixedPrecision{.param_dtype = dtype},
             .bucket_cap_mb = 0.004,
             .gradient_as_bucket_view = views});
        torch::optim::Adam adam(ddp->core().parameters(), 1e-2);
        GradScaler scaler({.init_scale = 1 << 26, .growth_interval = 4}, group);
        const at::Tensor x = at::randn({64, 32}, kGpu), y = at::tanh(x.narrow(1, 0, 8));
        double first = 0, last = 0;
        for (int step = 0; step < 60; ++step) {
          ddp->zero_grad(step % 2 == 0);
          at::Tensor output = ddp->forward(x);
          EXPECT_EQ(output.scalar_type(), dtype);
          at::Tensor loss = at::mse_loss(output.to(at::kFloat), y);
          scaler.scale(loss).backward();
          for (const at::Tensor& parameter : net->parameters()) {
            EXPECT_EQ(parameter.scalar_type(), at::kFloat);
            if (parameter.requires_grad()) {
              EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
            }
          }
          scaler.step(adam);
          scaler.update();
          (step == 0 ? first : last) = loss.item<double>();
        }
        EXPECT_LT(last, 0.5 * first);
        for (const at::Tensor& parameter : net->parameters()) {
          at::Tensor root = parameter.detach().clone();
          group.broadcast(root);
          EXPECT_TRUE(at::equal(root, parameter));
        }
        const HookTraffic traffic = ddp->hook_stats().last_step;
        EXPECT_EQ(traffic.bytes_before, 2 * traffic.bytes_sent);
      }
    }
  });
}

}  // namespace
}  // namespace brigade
