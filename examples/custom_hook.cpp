// Trains a small network with a hook of its own: custom_hook [HOOK], see custom_hooks.h.
#include <torch/torch.h>

#include <cstdio>

#include "custom_hooks.h"

constexpr const char* kUsage =
    "custom_hook [HOOK]\n"
    "Trains a small network. HOOK is mean, half, scaled_half, mixed or topk, all of which\n"
    "are in custom_hooks.h (default: topk), or a hook of the library: fp16,\n"
    "powersgd:rank=2,start=10 …\n"
    "Start it on several processes with: brigade run -n 2 custom_hook HOOK\n";

void train(const std::string& hook) {
  auto group = brigade::init_process_group();
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  at::Tensor targets = inputs.sin().sum(1, true);
  torch::nn::Sequential network(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                                torch::nn::Linear(64, 1));

  brigade::DistributedDataParallel model(network, group);
  model->set_hook(custom::make_hook(hook));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::DistributedSampler sampler(inputs.size(0), group);
  for (int epoch = 1; epoch <= 5; ++epoch) {
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(64)) {
      at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
      at::Tensor output = model->forward(inputs.index_select(0, index));
      at::Tensor loss = torch::mse_loss(output, targets.index_select(0, index));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", epoch, loss.item<double>());
  }
  const brigade::HookTraffic traffic = model->hook_stats().last_step;
  std::printf("%s: %ld bytes of gradients a step, %ld sent, in %ld collectives\n",
              model->hook()->name().c_str(), traffic.bytes_before, traffic.bytes_sent,
              traffic.collectives);
}

int main(int count, char** arguments) {
  const std::string hook = count > 1 ? arguments[1] : "topk";
  if (hook == "--help" || hook == "-h") return std::fputs(kUsage, stdout) < 0;
  return brigade::record_errors([&] {
    if (count > 2) throw brigade::ConfigError("expected one hook\n" + std::string(kUsage));
    train(hook);
  });
}
