// A network with several buckets, different data for each rank, and comparisons.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "brigade/distributed_data_parallel.h"

namespace brigade::testing {

inline torch::nn::Sequential small_net(at::ScalarType dtype = at::kFloat) {
  at::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                            torch::nn::Linear(8, 5), torch::nn::Tanh(),
                            torch::nn::Linear(5, 3));
  net->to(dtype);
  return net;
}

inline constexpr double kSmallBuckets = 1e-4;

// The data of one rank in one step, the same in every call.
template <class Model>
at::Tensor loss_on(Model& model, int rank, int64_t step,
                   at::ScalarType dtype = at::kFloat) {
  at::manual_seed(1000 * rank + step);
  const at::Tensor data = at::randn({4, 6}, dtype), target = at::randn({4, 3}, dtype);
  return at::mse_loss(model->forward(data), target);
}

inline std::vector<at::Tensor> copy_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& parameter : parameters) list.push_back(parameter.grad().clone());
  return list;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i].detach(), b[i].detach())) return false;
  return a.size() == b.size();
}

inline double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

// Whether all ranks of the group have the same bits; collective.
inline bool same_on(const ProcessGroup& group, const std::vector<at::Tensor>& mine) {
  bool same = true;
  for (const at::Tensor& tensor : mine) {
    at::Tensor first = tensor.detach().clone();
    group.broadcast(first, 0);
    same = same && at::equal(first, tensor.detach());
  }
  at::Tensor differ = at::full({1}, same ? 0 : 1);
  group.all_reduce(differ);
  return differ.item<int64_t>() == 0;
}

}  // namespace brigade::testing
