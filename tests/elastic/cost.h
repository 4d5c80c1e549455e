// What elastic training costs when nobody dies: the same steps with and without it, in
// turns, in one run.
#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "brigade/brigade.h"

namespace elastic_cost {

inline torch::nn::Sequential make_net(int64_t width) {
  return torch::nn::Sequential(torch::nn::Linear(64, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, 1));
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// `rounds` times `steps` steps of each kind. Prints the medians, on rank 0.
inline void measure(const std::string& hook, int64_t width, int rounds, int steps) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kBatch = 64;
  auto job = brigade::join_job({.backend = "gloo"});
  auto net = make_net(width);
  brigade::DistributedDataParallel ddp(net, job.group());
  torch::optim::SGD optimizer(ddp->parameters(), 0.001);
  brigade::ElasticSampler sampler(1 << 20, kBatch);
  brigade::ElasticTraining training(job, ddp, optimizer, sampler);
  if (hook != "none") ddp->set_hook(brigade::make_hook(hook));
  const auto x = torch::randn({kBatch, 64});

  training.next();  // forms the group
  training.step([&] { ddp->forward(x).mean().backward(); });
  brigade::DistributedDataParallel plain(make_net(width), training.group());
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.001);
  if (hook != "none") plain->set_hook(brigade::make_hook(hook));
  const auto plain_step = [&] {
    plain->zero_grad();
    plain->forward(x).mean().backward();
    plain_optimizer.step();
  };
  const auto elastic_step = [&] {
    training.next();
    training.step([&] { ddp->forward(x).mean().backward(); });
  };
  std::vector<double> with, without, ratios;
  for (int round = -2; round < rounds; ++round) {
    const auto time = [&](auto&& step) {
      const auto begin = Clock::now();
      for (int i = 0; i < steps; ++i) step();
      return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
             steps;
    };
    // In turns first, so that neither has the better place.
    const bool first = round % 2 == 0;
    double elastic = first ? time(elastic_step) : 0;
    const double bare = time(plain_step);
    if (!first) elastic = time(elastic_step);
    if (round < 0) continue;
    with.push_back(elastic);
    without.push_back(bare);
    ratios.push_back(elastic / bare);
  }
  if (training.group().rank() == 0) {
    std::printf(
        "cost: %s, width %lld, %d ranks: %.0f us a step plain, %.0f elastic, ratio %.4f\n",
        hook.c_str(), static_cast<long long>(width), training.group().size(),
        median(without), median(with), median(ratios));
  }
}

}  // namespace elastic_cost
