// Trains as ddp.cpp does, with an optimizer that steps while gradients still arrive.
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  auto group = brigade::init_process_group();
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  at::Tensor targets = inputs.sin().sum(1, true);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 1));

  brigade::DistributedDataParallel model(net, group);
  model->set_hook(brigade::make_hook("fp16"));  // any, or none
  auto adamw = std::make_shared<brigade::optim::AdamW>(
      brigade::optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.01});
  brigade::optim::apply_optimizer_in_backward(model, adamw);

  brigade::DistributedSampler sampler(inputs.size(0), group);
  for (int epoch = 1; epoch <= 5; ++epoch) {
    adamw->set_lr(epoch < 4 ? 1e-2 : 5e-3);
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(64)) {
      at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
      at::Tensor output = model->forward(inputs.index_select(0, index));
      at::Tensor loss = torch::mse_loss(output, targets.index_select(0, index));
      loss.backward();  // averages, steps, drops the gradients: nothing is left to do
    }
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", epoch, loss.item<double>());
  }
}
