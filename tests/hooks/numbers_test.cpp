// Hooks with extreme numbers, layouts and sizes.
#include "hooks/contract.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::all_finite;
using testing::averaging_cases;
using testing::expect_same_on_all_ranks;
using testing::Rig;
using testing::run_ranks;
using testing::set_hook;
using testing::Shapes;
using testing::Structure;

using Case = testing::HookCase;

// The sums of two ranks exceed fp16 or float32; single values exceed fp16 or are no number.
TEST(HookNumbers, WhatDoesNotFitIsTheSameOnAllRanksAndForgottenInTheNextStep) {
  run_ranks(2,
            [](ProcessGroup group) {
              Rig rig(group, "", {{40, 30}, {700}, {1}});
              for (const Case& c : averaging_cases()) {
                for (double value : {4e4, 3e38, 1e30, -HUGE_VAL}) {
                  SCOPED_TRACE(c.spec + " at " + std::to_string(value));
                  set_hook(rig, c);
                  std::vector<at::Tensor> inputs = rig.inputs(0);
                  for (at::Tensor& input : inputs) input.fill_(value);
                  const auto gradients = rig.train_on(inputs);
                  expect_same_on_all_ranks(group, gradients);
                  const bool finite = all_finite(gradients);
                  // Only a sum in fp16 itself would overflow.
                  if (value == 4e4) {
                    EXPECT_TRUE(finite);
                  }
                  EXPECT_FALSE(finite && value == -HUGE_VAL);
                  if (finite) continue;  // errors of large numbers are large
                  const auto after = rig.train(1);
                  expect_same_on_all_ranks(group, after);
                  EXPECT_TRUE(all_finite(after));
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

// The values lie in memory as the parameter's strides say; each must get its own mean.
TEST(HookNumbers, ParametersMayHaveAnyStrides) {
  run_ranks(2,
            [](ProcessGroup group) {
              auto bag = std::make_shared<testing::BagImpl>(Shapes{}, at::kFloat);
              const auto add = [&](const std::string& name, const at::Tensor& value) {
                bag->parameters_in_order.push_back(bag->register_parameter(name, value));
              };
              add("p0", at::zeros({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
              add("p1", at::zeros({20, 31}).t());
              DistributedDataParallel<testing::BagImpl> ddp(bag, group);
              for (const Case& c : averaging_cases()) {
                if (c.kind.structure != Structure::any) continue;
                SCOPED_TRACE(c.spec);
                ddp->set_hook(make_hook(c.spec));
                ddp->zero_grad();
                std::vector<at::Tensor> inputs;
                for (size_t index = 0; index < 2; ++index) {
                  const auto shape = bag->parameters_in_order[index].sizes().vec();
                  inputs.push_back(
                      testing::coefficient(shape, at::kFloat, group.rank(), 0, index));
                }
                ddp->forward(inputs).backward();
                for (size_t index = 0; index < 2; ++index) {
                  const at::Tensor& parameter = bag->parameters_in_order[index];
                  const at::Tensor mean =
                      testing::exact_mean(parameter.sizes().vec(), at::kFloat, 2, 0, index);
                  const double off =
                      (parameter.grad().to(at::kDouble) - mean).norm().item<double>();
                  EXPECT_LE(off, 2 * c.tolerance * inputs[0].norm().item<double>());
                }
              }
            },
            {.wall = std::chrono::minutes(2)});
}

// The number of values exceeds what a float32 counts exactly.
TEST(HookNumbers, ABucketMayHaveMoreThanTwoToThe24Values) {
  run_ranks(2,
            [](ProcessGroup group) {
              constexpr int64_t kMany = (int64_t{1} << 24) + 1;
              Rig rig(group, "int8", {{kMany}});
              const at::Tensor values = at::full({kMany}, group.rank() + 1.0);
              values[kMany - 1] = 0.5;
              const at::Tensor gradient = rig.train_on({values})[0];
              EXPECT_NEAR(gradient[0].item<double>(), 1.5, 0.02);
              EXPECT_NEAR(gradient[kMany - 2].item<double>(), 1.5, 0.02);
              EXPECT_NEAR(gradient[kMany - 1].item<double>(), 0.5, 0.02);
            },
            {.wall = std::chrono::minutes(2)});
}

}  // namespace
}  // namespace brigade
