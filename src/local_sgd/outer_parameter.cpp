#include "local_sgd/outer_parameter.h"

#include <ATen/ATen.h>

namespace brigade::optim {

// Half types have global parameters in float32, or small outer steps would be rounded away.
at::ScalarType outer_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

OuterParameter OuterParameter::make(const std::string& name, const at::Tensor& parameter,
                                    double momentum) {
  OuterParameter outer{
      name, parameter, parameter.detach().to(outer_dtype(parameter), false, true), {}};
  if (momentum > 0) outer.velocity = at::zeros_like(outer.global);
  return outer;
}

void OuterParameter::step(const at::Tensor& d, double lr, double momentum) {
  global.sub_(d, lr);
  if (!velocity.defined()) return;
  velocity.mul_(momentum).add_(d);
  global.sub_(velocity, lr * momentum);
}

void OuterParameter::reset_local(double mixing) {
  if (mixing == 0) {
    local.copy_(global);
  } else {
    local.copy_(global.mul(1 - mixing).add_(local.to(global.scalar_type()), mixing));
  }
}

}  // namespace brigade::optim
