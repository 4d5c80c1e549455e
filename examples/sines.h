// The task that the examples train on: eight numbers go in, the sum of their sines comes
// out. single_process.cpp and ddp.cpp spell out what is here.
#pragma once
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

struct Batch {
  at::Tensor inputs, targets;
};

// Equal data and, with make_model() after it, equal parameters on all ranks.
inline Batch make_data() {
  torch::manual_seed(0);
  at::Tensor inputs = torch::randn({4096, 8});
  return {inputs, inputs.sin().sum(1, true)};
}

inline torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 1));
}

// This rank's share of the data in an epoch, in batches of 64.
inline std::vector<Batch> batches(const Batch& data, const brigade::ProcessGroup& group,
                                  int64_t epoch) {
  brigade::DistributedSampler sampler(data.inputs.size(0), group);
  sampler.set_epoch(epoch);
  std::vector<Batch> list;
  while (auto rows = sampler.next(64)) {
    at::Tensor index = torch::tensor(std::vector<int64_t>(rows->begin(), rows->end()));
    list.push_back(
        {data.inputs.index_select(0, index), data.targets.index_select(0, index)});
  }
  return list;
}

// `model` is a module or a DistributedDataParallel.
template <class Model>
at::Tensor loss_of(Model& model, const Batch& batch) {
  return torch::mse_loss(model->forward(batch.inputs), batch.targets);
}

template <class Model>
void print_loss(int64_t epoch, Model& model, const Batch& data) {
  torch::NoGradGuard no_grad;
  std::printf("epoch %d: loss %.6f\n", static_cast<int>(epoch),
              loss_of(model, data).template item<double>());
}
