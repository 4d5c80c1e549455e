#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/optimizer.h>

#include <unordered_set>

#include "ddp/core_state.h"

namespace brigade {
namespace {

bool makes_sparse_gradients(torch::nn::Module& module) {
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  if (auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

template <class Impl>
bool tracks(torch::nn::Module& module) {
  const auto* norm = module.as<Impl>();
  return norm && norm->running_mean.defined();
}
bool is_batch_norm(torch::nn::Module& module) {
  return tracks<torch::nn::BatchNorm1dImpl>(module) ||
         tracks<torch::nn::BatchNorm2dImpl>(module) ||
         tracks<torch::nn::BatchNorm3dImpl>(module);
}

std::string dotted(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

void clear_gradient(at::Tensor& parameter, bool set_to_none) {
  if (!parameter.defined() || !parameter.mutable_grad().defined()) return;
  at::Tensor& gradient = parameter.mutable_grad();
  if (set_to_none) {
    gradient = at::Tensor();
    return;
  }
  // detach_() refuses views; a gradient has a graph only after create_graph.
  if (gradient.grad_fn()) gradient = gradient.detach();
  gradient.requires_grad_(false);
  gradient.zero_();
}

}  // namespace

DdpModel describe_model(torch::nn::Module& module) {
  DdpModel model;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& child : module.named_modules()) {
    const bool sparse = makes_sparse_gradients(*child.value());
    if (is_batch_norm(*child.value())) model.batch_norms.push_back(child.key());
    for (const auto& item : child.value()->named_parameters(/*recurse=*/false)) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      model.parameters.push_back({dotted(child.key(), item.key()), item.value(), sparse});
    }
  }
  model.buffers = [&module] {
    NamedBuffers buffers;
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const auto& item : module.named_buffers()) {
      if (!item.value().defined()) continue;
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      buffers.emplace_back(item.key(), item.value());
    }
    return buffers;
  };
  return model;
}

void zero_grad(const std::vector<at::Tensor>& parameters, bool set_to_none) {
  for (at::Tensor parameter : parameters) clear_gradient(parameter, set_to_none);
}

void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none) {
  for (auto& group : optimizer.param_groups()) zero_grad(group.params(), set_to_none);
}

namespace {

// Passes its gradients on unchanged; missing ones stay missing.
class Joint final : public torch::autograd::Node {
 public:
  Joint(torch::autograd::edge_list edges, std::function<void()> at_backward)
      : Node(std::move(edges)), at_backward_(std::move(at_backward)) {}

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& gradients) override {
    if (at_backward_) at_backward_();
    return std::move(gradients);
  }
  std::string name() const override { return "brigade::Joint"; }

 private:
  std::function<void()> at_backward_;
};

}  // namespace

void join_results(const std::vector<at::Tensor*>& results,
                  std::function<void()> at_backward) {
  std::vector<at::Tensor*> with_graph;
  torch::autograd::edge_list edges;
  for (at::Tensor* result : results) {
    // Leaves and tensors without gradients are not replaced: users compare and assign them.
    if (!result->defined() || !result->grad_fn()) continue;
    with_graph.push_back(result);
    edges.push_back(torch::autograd::impl::gradient_edge(*result));
  }
  if (with_graph.empty()) return;
  auto joint = std::make_shared<Joint>(std::move(edges), std::move(at_backward));
  for (at::Tensor* result : with_graph) {
    // tensor_data() shares memory and version counter, so autograd still notices when the
    // result is changed in place.
    at::Tensor replacement = result->tensor_data();
    torch::autograd::set_history(replacement, joint);
    *result = replacement;
  }
}

}  // namespace brigade
