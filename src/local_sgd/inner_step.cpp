#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "brigade/local_sgd.h"

namespace brigade::optim::detail {

InnerStep step_each(
    std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step_param,
    std::vector<at::Tensor> parameters) {
  return [step_param = std::move(step_param), parameters = std::move(parameters)] {
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) step_param(parameter, parameter.grad());
    }
  };
}

}  // namespace brigade::optim::detail
