// Measures the cost of elastic training when nobody dies: the same steps with and without
// it, in turns, in one run.
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

// Takes `rounds` times `steps` steps of each kind. Rank 0 prints the medians.
inline void measure(const std::string& hook, int64_t width, int64_t batch, int rounds,
                    int steps) {
  using Clock = std::chrono::steady_clock;
  auto job = brigade::join_job({.backend = "gloo"});
  auto net = make_net(width);
  brigade::DistributedDataParallel ddp(net, job.group());
  torch::optim::SGD optimizer(ddp->parameters(), 0.001);
  brigade::ElasticSampler sampler(1 << 24, batch);
  brigade::ElasticTraining training(job, ddp, optimizer, sampler);
  if (hook != "none") ddp->set_hook(brigade::make_hook(hook));
  const auto x = torch::randn({batch, 64});

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
    // They take turns at being first, so that neither has an advantage.
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
        "cost: %s, width %lld, batch %lld, %d ranks: %.0f us a step plain, %.0f elastic, "
        "ratio %.4f\n",
        hook.c_str(), static_cast<long long>(width), static_cast<long long>(batch),
        training.group().size(), median(without), median(with), median(ratios));
  }
}

// Measures how fast a state of so many MB goes from one rank to the others, beside a plain
// broadcast of as many bytes.
inline void measure_transfer(int64_t megabytes) {
  using Clock = std::chrono::steady_clock;
  auto job = brigade::join_job({.backend = "gloo"});
  torch::nn::Sequential net;
  for (int64_t left = megabytes; left > 0; left -= 32)
    net->push_back(torch::nn::Linear(
        torch::nn::LinearOptions(1 << 12, std::min<int64_t>(left, 32) << 6).bias(false)));
  brigade::DistributedDataParallel ddp(net, job.group());
  torch::optim::SGD optimizer(ddp->parameters(), 0.001);
  brigade::ElasticSampler sampler(1 << 20, 1);
  brigade::ElasticTraining training(job, ddp, optimizer, sampler);
  training.next();
  const brigade::ElasticEvent event = training.events().front();
  const auto plain = torch::ones({megabytes << 18});
  std::vector<double> seconds;
  for (int round = 0; round < 3; ++round) {
    training.group().barrier();
    const auto begin = Clock::now();
    training.group().broadcast(plain, 0);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (training.group().rank() != training.group().size() - 1) return;
  const double handed = static_cast<double>(event.bytes) / 1e6 /
                        (static_cast<double>(event.transfer.count()) / 1e3);
  const double bare = static_cast<double>(plain.nbytes()) / 1e6 / median(seconds);
  std::printf(
      "transfer: %.0f MB, %d ranks: %.0f MB/s, a plain broadcast %.0f, ratio %.2f\n",
      static_cast<double>(event.bytes) / 1e6, training.group().size(), handed, bare,
      handed / bare);
}

}  // namespace elastic_cost
