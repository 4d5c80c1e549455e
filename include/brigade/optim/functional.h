// SPDX-License-Identifier: BSD-3-Clause
// What an optimizer needs to step in the backward pass, and an adapter that gives it to
// those of torch::optim.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "brigade/error.h"
#include "brigade/export.h"

namespace torch::optim {
class Optimizer;
}

namespace brigade::optim {

// step_param changes `parameter` by one step with `gradient`, which it leaves alone. It is
// called by threads of the engine, by one at a time, with gradients disabled.
template <class T>
concept FunctionalOptimizer = requires(T& optimizer, const at::Tensor& parameter,
                                       const at::Tensor& gradient) {
  optimizer.step_param(parameter, gradient);
};

// Any optimizer of torch::optim except LBFGS, which needs all gradients at once. It steps
// the parameters that the optimizer was made with, each with the options of its group.
// Learning rates are changed in the optimizer's own options, and the optimizer keeps its
// state.
class BRIGADE_API TorchOptimizer {
 public:
  explicit TorchOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  // Throws ConfigError for a parameter that is not in the optimizer.
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient);
  std::string fingerprint() const;
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  std::mutex mutex_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::unordered_map<const c10::TensorImpl*, size_t> group_of_;
};
BRIGADE_API std::shared_ptr<TorchOptimizer> functional(
    std::shared_ptr<torch::optim::Optimizer> optimizer);

// A parameter, and what it steps with.
struct ParameterStep {
  at::Tensor parameter = {};
  at::Tensor gradient = {};
};

// An optimizer of any type. `description` must be equal on all ranks; it is the optimizer's
// fingerprint(), if it has one.
struct Stepper {
  std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step;
  std::string description = "optimizer";
  // Many at once. Empty: one after the other.
  std::function<void(const std::vector<ParameterStep>& steps)> step_all = nullptr;

  void all(const std::vector<ParameterStep>& steps) const {
    if (step_all) return step_all(steps);
    for (const ParameterStep& each : steps) step(each.parameter, each.gradient);
  }
};

template <class T>
Stepper stepper_of(std::shared_ptr<T> optimizer) {
  static_assert(FunctionalOptimizer<T>,
                "this optimizer can't step in the backward pass: it has no "
                "step_param(const at::Tensor& parameter, const at::Tensor& gradient). For "
                "one of torch::optim, give brigade::optim::functional(optimizer)");
  Stepper stepper;
  if constexpr (FunctionalOptimizer<T>) {
    if (!optimizer) throw ConfigError("the optimizer for the backward pass is null");
    if constexpr (requires { optimizer->fingerprint(); }) {
      stepper.description = optimizer->fingerprint();
    }
    stepper.step = [optimizer](const at::Tensor& parameter, const at::Tensor& gradient) {
      optimizer->step_param(parameter, gradient);
    };
    if constexpr (requires(const std::vector<ParameterStep>& steps) {
                    optimizer->step_params(steps);
                  }) {
      stepper.step_all = [optimizer](const std::vector<ParameterStep>& steps) {
        optimizer->step_params(steps);
      };
    }
  }
  return stepper;
}

}  // namespace brigade::optim
