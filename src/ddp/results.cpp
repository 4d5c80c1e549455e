#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/core_state.h"

namespace brigade {
namespace {

// Gives its gradients on as they are; missing ones stay missing.
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
    // Leaves and tensors without gradients stay themselves: users compare and assign them.
    if (!result->defined() || !result->grad_fn()) continue;
    with_graph.push_back(result);
    edges.push_back(torch::autograd::impl::gradient_edge(*result));
  }
  if (with_graph.empty()) return;
  auto joint = std::make_shared<Joint>(std::move(edges), std::move(at_backward));
  for (at::Tensor* result : with_graph) {
    // tensor_data() shares memory and version counter: changing the result in place is
    // found out as it would be without us.
    at::Tensor replacement = result->tensor_data();
    torch::autograd::set_history(replacement, joint);
    *result = replacement;
  }
}

}  // namespace brigade
