#include "optim/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "brigade/error.h"
#include "brigade/optimizer_in_backward.h"
#include "kernels/sum_squares.h"

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
  // The order is the parameters', and each term has the same bits on every CPU.
  double squares = 0;
  for (const at::Tensor& gradient : gradients)
    squares += squares_in(gradient.is_sparse() ? gradient.coalesce() : gradient);
  const double factor = clipping_factor(squares, max_norm);
  if (factor < 1)
    for (at::Tensor gradient : gradients) gradient.mul_(factor);
  return std::sqrt(squares);
}

double squares_in(const at::Tensor& gradient) {
  if (gradient.is_sparse()) return squares_in(gradient._values());
  if (gradient.is_cpu() && gradient.scalar_type() == at::kFloat &&
      gradient.is_non_overlapping_and_dense()) {
    return kernels::sum_squares(
        {gradient.const_data_ptr<float>(), static_cast<std::size_t>(gradient.numel())});
  }
  const double norm = at::linalg_vector_norm(gradient).to(at::kDouble).item<double>();
  return norm * norm;
}

double clipping_factor(double squares, double max_norm) {
  return std::min(max_norm / (std::sqrt(squares) + kAgainstZero), 1.0);
}

}  // namespace brigade::optim
