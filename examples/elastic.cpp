// Trains a small network, and goes on when a worker dies; see ddp.cpp.
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <cstdio>

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 1));
}

int main() {
  auto job = brigade::join_job();
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  at::Tensor targets = inputs.sin().sum(1, true);

  brigade::DistributedDataParallel model(make_model(), job.group());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::ElasticSampler sampler(inputs.size(0), 64, {.epochs = 5});
  brigade::ElasticTraining training(job, model, optimizer, sampler);
  while (auto rows = training.next()) {
    const int64_t epoch = sampler.epoch();
    training.step([&] {
      at::Tensor output = model->forward(inputs.index_select(0, *rows));
      torch::mse_loss(output, targets.index_select(0, *rows)).backward();
    });
    if (sampler.epoch() == epoch) continue;
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", static_cast<int>(epoch + 1), loss.item<double>());
    std::fflush(stdout);
  }
}
