// Uses that ElasticTraining refuses, and state that it keeps.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "brigade/elastic.h"
#include "brigade/error.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "brigade/zero.h"

namespace brigade {
namespace {

struct Parts {
  ElasticJob job = join_job();  // started alone: the only member
  torch::nn::Linear net{2, 1};
  DistributedDataParallel<torch::nn::LinearImpl> ddp{net.ptr(), job.group()};
  torch::optim::SGD optimizer{ddp->parameters(), 0.1};
  ElasticSampler sampler{4, 2};
};

template <class Body>
std::string refusal_of(Body body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ElasticRefusals, AnOptimizerThatCannotBeSaved) {
  Parts parts;
  torch::optim::LBFGS optimizer(parts.ddp->parameters());
  const std::string text =
      refusal_of([&] { ElasticTraining(parts.job, parts.ddp, optimizer, parts.sampler); });
  EXPECT_NE(text.find("a newcomer could not get this optimizer's state"), std::string::npos)
      << text;
}

TEST(ElasticRefusals, AnOptimizerInTheBackwardPass) {
  Parts parts;
  auto in_backward = std::make_shared<optim::SGD>(optim::SGDOptions{.lr = 0.1});
  optim::apply_optimizer_in_backward(parts.ddp, in_backward);
  const std::string text = refusal_of(
      [&] { ElasticTraining(parts.job, parts.ddp, parts.optimizer, parts.sampler); });
  EXPECT_NE(text.find("steps in the backward pass"), std::string::npos) << text;
}

TEST(ElasticRefusals, ZeRO) {
  Parts parts;
  optim::ZeroRedundancyOptimizer zero(parts.ddp, "sgd:lr=0.1");
  EXPECT_NE(refusal_of([&] {
              ElasticTraining(parts.job, parts.ddp, zero, parts.sampler);
            }).find("with ZeRO each rank keeps a shard"),
            std::string::npos);
  optim::apply_zero_in_backward(parts.ddp, "sgd:lr=0.1");
  EXPECT_NE(refusal_of([&] {
              ElasticTraining(parts.job, parts.ddp, parts.optimizer, parts.sampler);
            }).find("or ZeRO, steps in the backward pass"),
            std::string::npos);
}

TEST(ElasticRefusals, OptionsOfTrainingApartAndOfCheckpoints) {
  Parts parts;
  ElasticTraining training(parts.job, parts.ddp, parts.optimizer, parts.sampler);
  EXPECT_NE(refusal_of([&] { training.train_locally({.period = 0}); }), "");
  EXPECT_NE(refusal_of([&] { training.train_locally({.outer_lr = 0}); }), "");
  EXPECT_NE(refusal_of([&] { training.train_locally({.outer_momentum = 1}); }), "");
  EXPECT_NE(refusal_of([&] { training.checkpoint("folder", 0); }), "");
  EXPECT_NE(refusal_of([&] { training.checkpoint("", 1); }), "");
}

TEST(ElasticRefusals, ANameThatIsTakenAndWhatIsARanksOwn) {
  Parts parts;
  ElasticTraining training(parts.job, parts.ddp, parts.optimizer, parts.sampler);
  PartState state;
  EXPECT_NE(refusal_of([&] { training.keep(user_part(state, false, "optimizer")); }), "");
  EXPECT_NE(refusal_of([&] { training.keep(user_part(state, true, "mine")); }), "");
  EXPECT_EQ(refusal_of([&] { training.keep(user_part(state, false, "ours")); }), "");
  training.next();
  EXPECT_NE(refusal_of([&] { training.keep(user_part(state, false, "late")); }), "");
}

TEST(ElasticRefusals, StepsWithoutRows) {
  Parts parts;
  ElasticTraining training(parts.job, parts.ddp, parts.optimizer, parts.sampler);
  EXPECT_THROW(training.step([] {}), Error);
  training.next();
  EXPECT_THROW(training.next(), Error);
}

TEST(ElasticJobOfOne, EndsAfterItsEpochsOrItsSteps) {
  for (const int64_t limit : {1, 100}) {
    Parts parts;
    ElasticTraining training(parts.job, parts.ddp, parts.optimizer, parts.sampler);
    training.end_after(limit);
    int64_t steps = 0;
    while (auto rows = training.next()) {
      EXPECT_TRUE(training.step([&] {
        parts.ddp->forward(at::ones({rows->numel(), 2})).sum().backward();
      }));
      ++steps;
    }
    EXPECT_EQ(steps, std::min<int64_t>(limit, 2));
    EXPECT_EQ(training.steps(), steps);
    ASSERT_EQ(training.events().size(), 1U);
    EXPECT_EQ(training.events()[0].members, 1);
  }
}

}  // namespace
}  // namespace brigade
