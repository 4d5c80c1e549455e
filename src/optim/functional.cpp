#include <ATen/ATen.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "brigade/optim.h"

namespace brigade::optim {
namespace {

// While this object lives, the optimizer has only one parameter.
class OnlyOne {
 public:
  OnlyOne(torch::optim::Optimizer& optimizer, size_t group, const at::Tensor& parameter)
      : groups_(optimizer.param_groups()) {
    for (auto& each : groups_) all_.push_back(std::exchange(each.params(), {}));
    groups_[group].params().push_back(parameter);
  }
  ~OnlyOne() {
    for (size_t i = 0; i < all_.size(); ++i) groups_[i].params() = std::move(all_[i]);
  }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  std::vector<std::vector<at::Tensor>> all_;
};

class WithGradient {
 public:
  WithGradient(const at::Tensor& parameter, const at::Tensor& gradient)
      : parameter_(parameter),
        before_(std::exchange(parameter_.mutable_grad(), gradient)) {}
  ~WithGradient() { parameter_.mutable_grad() = before_; }
  WithGradient(const WithGradient&) = delete;
  WithGradient& operator=(const WithGradient&) = delete;

 private:
  at::Tensor parameter_;
  at::Tensor before_;
};

}  // namespace

TorchOptimizer::TorchOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  if (!optimizer_) throw ConfigError("functional: the optimizer is null");
  if (dynamic_cast<torch::optim::LBFGS*>(optimizer_.get())) {
    throw ConfigError(
        "LBFGS can't step in the backward pass: it needs all gradients at once, and "
        "computes the loss again");
  }
  const auto& groups = optimizer_->param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) {
      group_of_[parameter.unsafeGetTensorImpl()] = group;
    }
  }
}

void TorchOptimizer::step_param(const at::Tensor& parameter, const at::Tensor& gradient) {
  const auto group = group_of_.find(parameter.unsafeGetTensorImpl());
  if (group == group_of_.end()) {
    throw ConfigError(c10::str("a parameter of shape ", parameter.sizes(),
                               " is in no group of the optimizer that shall step it; make "
                               "it with all, or choose those it has"));
  }
  std::lock_guard lock(mutex_);
  // Mixed precision brings gradients in halves; momentum must not be kept in them.
  WithGradient with_gradient(parameter, gradient.to(parameter.scalar_type()));
  OnlyOne only_one(*optimizer_, group->second, parameter);
  optimizer_->step();
}

std::string TorchOptimizer::fingerprint() const {
  const torch::optim::Optimizer& optimizer = *optimizer_;
  std::string text = c10::demangle(typeid(optimizer).name());
  for (auto& group : optimizer_->param_groups()) {
    text += c10::str(" lr=", group.options().get_lr());
  }
  return text;
}

std::shared_ptr<TorchOptimizer> functional(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return std::make_shared<TorchOptimizer>(std::move(optimizer));
}

}  // namespace brigade::optim
