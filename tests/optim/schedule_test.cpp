#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "brigade/error.h"
#include "brigade/optim.h"

namespace brigade::optim {
namespace {

void expect_rates(const Schedule& schedule, const std::vector<double>& rates) {
  for (size_t step = 0; step < rates.size(); ++step)
    EXPECT_NEAR(schedule(static_cast<int64_t>(step)), rates[step], 1e-12) << step;
}

// The numbers are those of torch.optim.lr_scheduler.
TEST(Schedule, RatesAreTorchs) {
  expect_rates(constant(0.1), {0.1, 0.1, 0.1});
  expect_rates(step_decay(0.1, 2), {0.1, 0.1, 0.01, 0.01, 0.001});
  expect_rates(
      cosine(0.1, 8, 0.01),
      {0.1, 0.0965745789630079, 0.08681980515339463, 0.07222075445642905, 0.055,
       0.03777924554357096, 0.023180194846605363, 0.013425421036992097, 0.01, 0.01});
  expect_rates(
      one_cycle(0.1, 10),
      {0.004, 0.052, 0.1, 0.09504846320134738, 0.0811745653949763, 0.06112620219362893,
       0.03887419780637107, 0.0188258346050237, 0.004951936798652629, 4e-07, 4e-07});
}

TEST(Schedule, OneCycleMayBeginAtItsTop) {
  // Torch divides by 0 if the rise is one step long.
  EXPECT_NEAR(one_cycle(0.1, 10, {.rising = 0.1})(0), 0.1, 1e-12);
}

TEST(Schedule, WarmUpRisesToWhatFollows) {
  expect_rates(warm_up(3, step_decay(0.4, 1, 0.5)), {0.1, 0.2, 0.3, 0.4, 0.2, 0.1});
}

// A page shows it.
void set_rate(torch::optim::Optimizer& optimizer, int64_t step) {
  const Schedule rate = warm_up(500, cosine(0.1, 20'000));
  rate.apply(optimizer, step);  // before each step
}

TEST(Schedule, IsAppliedToTorchsOptimizersAndOurs) {
  // Computes with no tensor, because the test program forks.
  torch::optim::SGD sgd(
      {torch::optim::OptimizerParamGroup({}), torch::optim::OptimizerParamGroup({})},
      torch::optim::SGDOptions(1));
  const Schedule rate = cosine(0.5, 4);
  rate.apply(static_cast<torch::optim::Optimizer&>(sgd), 2);
  for (auto& group : sgd.param_groups()) EXPECT_NEAR(group.options().get_lr(), 0.25, 1e-12);
  set_rate(sgd, 250);
  EXPECT_NEAR(sgd.param_groups()[0].options().get_lr(), 0.1 * 251 / 501, 1e-12);
  struct Own {
    void set_lr(double given) { lr = given; }
    double lr = 0;
  } own;
  rate.apply(own, 2);
  EXPECT_NEAR(own.lr, 0.25, 1e-12);
}

TEST(Schedule, WrongNumbersAreNamed) {
  EXPECT_THROW(constant(-1), ConfigError);
  EXPECT_THROW(cosine(0.1, 0), ConfigError);
  EXPECT_THROW(step_decay(0.1, 3, 0), ConfigError);
  EXPECT_THROW(one_cycle(0.1, 5, {.rising = 2}), ConfigError);
  EXPECT_THROW(warm_up(0, constant(1)), ConfigError);
  EXPECT_THROW(constant(1)(-1), ConfigError);
  EXPECT_THROW(Schedule(nullptr), ConfigError);
}

}  // namespace
}  // namespace brigade::optim
