// Training on the handwritten digits on four ranks, as two hosts of two: ranks that average
// rarely learn as well as ranks that average every gradient.
#include "support/digits.h"

#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>

#include "brigade/brigade.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Digits;

constexpr int64_t kSteps = 400;
constexpr int64_t kRows = 25;  // a rank and step

torch::nn::Sequential make_net() {
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 48), torch::nn::Tanh(),
                               torch::nn::Linear(48, 10));
}

template <class Model>
void backward(Model& model, const Digits& digits, const ProcessGroup& group, int64_t step) {
  const int64_t begin = (step * group.size() + group.rank()) * kRows;
  const at::Tensor batch =
      (at::arange(begin, begin + kRows) * 7).remainder(digits.train.labels.size(0));
  torch::nn::functional::cross_entropy(model->forward(digits.train.pixels.index({batch})),
                                       digits.train.labels.index({batch}))
      .backward();
}

struct Outcome {
  double accuracy;  // in percent
  double bytes;     // sent a rank and step
};

Outcome judge(torch::nn::Sequential& net, const Digits& digits, int64_t bytes) {
  at::NoGradGuard guard;
  const auto hits =
      net->forward(digits.test.pixels).argmax(1).eq(digits.test.labels).to(at::kDouble);
  return {100 * hits.mean().item<double>(), static_cast<double>(bytes) / kSteps};
}

void set_rate(torch::optim::Optimizer& optimizer, double first, int64_t step) {
  optimizer.param_groups()[0].options().set_lr(first * static_cast<double>(kSteps - step) /
                                               kSteps);
}

Outcome train_ddp(const ProcessGroup& group, const Digits& digits,
                  const std::optional<optim::LocalSGDOptions>& options) {
  auto net = make_net();
  DistributedDataParallel ddp(net, group);
  ddp->set_hook(make_hook("allreduce"));
  torch::optim::SGD optimizer(ddp->parameters(), 0.5);
  std::optional<optim::LocalSGD> local;
  if (options) local.emplace(ddp, optimizer, *options);
  for (int64_t step = 0; step < kSteps; ++step) {
    ddp->zero_grad();
    backward(ddp, digits, group, step);
    set_rate(optimizer, 0.5, step);
    local ? local->step() : static_cast<void>(optimizer.step());
  }
  if (local) local->finish();
  return judge(net, digits,
               local ? local->bytes_sent() : ddp->hook_stats().total.bytes_sent);
}

Outcome train_diloco(const ProcessGroup& group, const Digits& digits,
                     optim::DiLoCoOptions options) {
  auto net = make_net();
  torch::optim::AdamW optimizer(net->parameters(), 3e-3);
  optim::DiLoCo diloco(*net, optimizer, group, std::move(options));
  for (int64_t step = 0; step < kSteps; ++step) {
    net->zero_grad();
    backward(net, digits, group, step);
    set_rate(optimizer, 3e-3, step);
    diloco.step();
  }
  diloco.finish();
  return judge(net, digits, diloco.stats().total.bytes_sent);
}

TEST(LocalTrainingOnDigits, IsWithinOnePointOfAveragingEveryGradient) {
  const testing::TemporaryFolder folder;
  testing::run_ranks(
      4,
      [&](ProcessGroup group) {
        const Digits digits = testing::read_digits();
        const ProcessGroup host = group.new_subgroups(2);
        std::ostringstream table;
        table << std::fixed << std::left << std::setw(52) << "how" << std::right
              << std::setw(11) << "accuracy %" << std::setw(14) << "bytes a step\n";
        double exact = 0;
        const auto row = [&](const std::string& how, const Outcome& outcome) {
          if (exact == 0) exact = outcome.accuracy;
          EXPECT_GE(outcome.accuracy, exact - 1) << how;
          table << std::left << std::setw(52) << how << std::right << std::setprecision(2)
                << std::setw(11) << outcome.accuracy << std::setprecision(0)
                << std::setw(13) << outcome.bytes << "\n";
        };
        row("every gradient, SGD", train_ddp(group, digits, std::nullopt));
        EXPECT_GE(exact, 94) << "all-reduce itself must learn";
        row("LocalSGD, period 8, hosts of 2",
            train_ddp(
                group, digits,
                optim::LocalSGDOptions{.warmup_steps = 40, .period = 8, .subgroup = host}));
        row("LocalSGD, period 8, every rank for itself",
            train_ddp(group, digits,
                      optim::LocalSGDOptions{.warmup_steps = 40,
                                             .period = 8,
                                             .post_local_gradient_allreduce = false}));
        row("LocalSGD, 4 steps in a host, 16 over all",
            train_ddp(group, digits,
                      optim::LocalSGDOptions{.warmup_steps = 40,
                                             .levels = {{4, 2}, {16, 4}},
                                             .post_local_gradient_allreduce = false}));
        row("DiLoCo, period 20, AdamW", train_diloco(group, digits, {.period = 20}));
        row("DiLoCo, period 20, int8",
            train_diloco(group, digits, {.period = 20, .hook = make_hook("int8")}));
        row("DiLoCo, period 20, 3 fragments, delay 2, mixing 0.5",
            train_diloco(group, digits,
                         {.period = 20, .fragments = 3, .delay = 2, .mixing = 0.5}));
        row("DiLoCo, period 100", train_diloco(group, digits, {.period = 100}));
        if (group.rank() == 0) std::ofstream(folder.path() + "/table") << table.str();
      },
      {.wall = std::chrono::minutes(3)});
  std::cout << std::ifstream(folder.path() + "/table").rdbuf();
}

}  // namespace
}  // namespace brigade
