// Training on the handwritten digits in half the precision, against fp32.
#include <iomanip>

#include "brigade/hooks.h"
#include "brigade/optimizer_in_backward.h"
#include "ddp/mixed_precision_nets.h"
#include "support/command.h"
#include "support/digits.h"

namespace brigade::testing {
namespace {

constexpr int kSteps = 200;
constexpr int64_t kRows = 50;       // a rank and step
constexpr double kFirstRate = 0.5;  // falls to 0

struct Outcome {
  double accuracy;  // in percent
  double loss;
  double bytes;  // sent a step
};

Outcome train(const ProcessGroup& group, const Digits& digits,
              const std::optional<MixedPrecision>& mixed, bool scaled = false) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 48), torch::nn::Tanh(),
                            torch::nn::Linear(48, 10));
  DistributedDataParallel ddp(net, group,
                              {.mixed_precision = mixed, .bucket_cap_mb = 0.012});
  ddp->set_hook(make_hook("allreduce"));
  torch::optim::SGD optimizer(ddp->parameters(), kFirstRate);
  GradScaler scaler({.growth_interval = 50, .enabled = scaled}, group);
  const int64_t rows = digits.train.labels.size(0);
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t begin = (step * group.size() + group.rank()) * kRows;
    const auto batch = (torch::arange(begin, begin + kRows) * 7).remainder(rows);
    ddp->zero_grad();
    const auto scores = ddp(digits.train.pixels.index({batch}));
    EXPECT_EQ(scores.scalar_type(), mixed ? *mixed->param_dtype : torch::kFloat);
    const auto wanted = digits.train.labels.index({batch});
    const auto value =
        torch::nn::functional::cross_entropy(scores.to(torch::kFloat), wanted);
    scaler.scale(value).backward();
    static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options())
        .lr(kFirstRate * static_cast<double>(kSteps - step) / kSteps);
    scaler.step(optimizer);
    scaler.update();
  }
  expect_full_precision(*net);
  expect_equal_replicas(*net, group);
  torch::NoGradGuard guard;
  const auto hits =
      net->forward(digits.test.pixels).argmax(1).eq(digits.test.labels).to(torch::kDouble);
  const auto value = torch::nn::functional::cross_entropy(net->forward(digits.train.pixels),
                                                          digits.train.labels);
  const auto& total = ddp->hook_stats().total;
  return {100 * hits.mean().item<double>(), value.item<double>(),
          static_cast<double>(total.bytes_sent) / kSteps};
}

TEST(MixedPrecisionTraining, OnDigitsIsWithinHalfAPointOfFullPrecision) {
  const TemporaryFolder folder;
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](ProcessGroup group) {
      const Digits digits = read_digits();
      const Outcome exact = train(group, digits, std::nullopt);
      EXPECT_GE(exact.accuracy, 94) << "fp32 itself must learn";
      std::ofstream table(folder.path() + "/" + std::to_string(group.rank()));
      const auto row = [&](const char* name, const Outcome& outcome) {
        EXPECT_GE(outcome.accuracy, exact.accuracy - 0.5) << name;
        table << std::fixed << group.size() << " ranks  " << std::left << std::setw(30)
              << name << std::right << std::setprecision(2) << std::setw(8)
              << outcome.accuracy << " %  loss " << std::setprecision(6) << outcome.loss
              << std::setprecision(0) << std::setw(9) << outcome.bytes << " bytes a step\n";
      };
      row("fp32", exact);
      row("bf16", train(group, digits, MixedPrecision{.param_dtype = at::kBFloat16}));
      row("bf16, reduced in fp32",
          train(group, digits,
                MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}));
      row("fp16 with GradScaler",
          train(group, digits, MixedPrecision{.param_dtype = at::kHalf}, true));
    });
    std::cout << std::ifstream(folder.path() + "/0").rdbuf();
  }
}

}  // namespace
}  // namespace brigade::testing
