// Local SGD: after a warm-up the ranks average gradients within their host only, and
// parameters over all ranks at every 16th step.
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

  brigade::DistributedDataParallel model(make_model(), group);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::optim::LocalSGD local(model, optimizer, {.warmup_steps = 40, .period = 16});
  brigade::DistributedSampler sampler(inputs.size(0), group);
  for (int epoch = 1; epoch <= 5; ++epoch) {
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(64)) {
      at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
      at::Tensor output = model->forward(inputs.index_select(0, index));
      at::Tensor loss = torch::mse_loss(output, targets.index_select(0, index));
      model->zero_grad();
      loss.backward();
      local.step();  // the optimizer's, and the mean if it is time
    }
    local.finish();  // between two means the replicas differ
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", epoch, loss.item<double>());
  }
}
