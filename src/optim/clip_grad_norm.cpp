#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "brigade/error.h"
#include "brigade/optimizer_in_backward.h"
#include "optim/norm.h"

namespace brigade::optim {

double clip_grad_norm(DdpCore& core, double max_norm) {
  if (!(max_norm > 0)) {
    throw ConfigError("clip_grad_norm: max_norm is " + std::to_string(max_norm) +
                      ", but must be more than 0");
  }
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : core.parameters())
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  // In the parameters' order, and each with the same bits on every CPU.
  double squares = 0;
  for (const at::Tensor& gradient : gradients)
    squares += squares_in(gradient.is_sparse() ? gradient.coalesce() : gradient);
  const double factor = clipping_factor(squares, max_norm);
  if (factor < 1)
    for (at::Tensor gradient : gradients) gradient.mul_(factor);
  return std::sqrt(squares);
}

}  // namespace brigade::optim
