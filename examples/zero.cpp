// Trains as ddp.cpp does; each rank keeps its share of the optimizer's state, and the run
// can be stopped and taken up again by any number of ranks.
//   brigade run -n 2 zero [FOLDER]
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  auto group = brigade::init_process_group();
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  at::Tensor targets = inputs.sin().sum(1, true);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 1));

  brigade::DistributedDataParallel model(net, group);
  auto zero = brigade::optim::apply_zero_in_backward(model, "adamw:lr=0.01");

  const std::vector<brigade::CheckpointPart> parts{brigade::model_part(*net),
                                                   brigade::zero_part(*zero)};
  int64_t epoch = 0;
  if (argc > 1) epoch = brigade::load_checkpoint(argv[1], group, parts).value_or(0);
  brigade::DistributedSampler sampler(inputs.size(0), group);
  while (++epoch <= 5) {
    zero->set_lr(epoch < 4 ? 1e-2 : 5e-3);
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(64)) {
      at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
      at::Tensor output = model->forward(inputs.index_select(0, index));
      at::Tensor loss = torch::mse_loss(output, targets.index_select(0, index));
      loss.backward();  // reduces, steps, hands the parameters round, drops the gradients
    }
    if (argc > 1) brigade::save_checkpoint(argv[1], epoch, group, parts);
    torch::NoGradGuard no_grad;
    at::Tensor loss = torch::mse_loss(model->forward(inputs), targets);
    std::printf("epoch %d: loss %.6f\n", static_cast<int>(epoch), loss.item<double>());
  }
}
