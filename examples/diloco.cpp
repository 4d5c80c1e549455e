// DiLoCo: every rank trains by itself, and they meet once in 20 steps, with int8.
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <cstdio>

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 1));
}

int main() {
  auto group = brigade::init_process_group();
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  at::Tensor targets = inputs.sin().sum(1, true);

  torch::nn::Sequential model = make_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::optim::DiLoCo diloco(*model, optimizer, group,
                                {.period = 20, .hook = brigade::make_hook("int8")});
  brigade::DistributedSampler sampler(inputs.size(0), group);
  for (int epoch = 1; epoch <= 5; ++epoch) {
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(64)) {
      at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
      at::Tensor output = model->forward(inputs.index_select(0, index));
      at::Tensor loss = torch::mse_loss(output, targets.index_select(0, index));
      optimizer.zero_grad();
      loss.backward();
      diloco.step();  // the optimizer's, and the outer step if it is time
    }
    diloco.finish();  // between two exchanges the replicas differ
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", epoch, loss.item<double>());
  }
}
