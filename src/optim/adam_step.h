// The step that Adam and AdamW share.
#pragma once
#include <cmath>

#include "optim/arithmetic.h"

namespace brigade::optim {

struct AdamNumbers {
  double lr, beta1, beta2, eps;
  double weight_decay;  // added to the gradient
  double shrink;        // the parameter is multiplied by it first
  bool maximize;
  int64_t step;
};

// `maximum` is undefined without amsgrad.
inline void adam_step(const AdamNumbers& n, at::Tensor& parameter,
                      const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
                      at::Tensor maximum) {
  const auto steps = static_cast<double>(n.step);
  const double step_size = n.lr / (1 - std::pow(n.beta1, steps));
  const double root_correction = std::sqrt(1 - std::pow(n.beta2, steps));
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdamStep step{.step_size = static_cast<float>(step_size),
                                 .beta1 = static_cast<float>(n.beta1),
                                 .rest1 = static_cast<float>(1 - n.beta1),
                                 .beta2 = static_cast<float>(n.beta2),
                                 .rest2 = static_cast<float>(1 - n.beta2),
                                 .root_correction = static_cast<float>(root_correction),
                                 .eps = static_cast<float>(n.eps),
                                 .weight_decay = static_cast<float>(n.weight_decay),
                                 .sign = sign_for(n.maximize),
                                 .shrink = static_cast<float>(n.shrink)};
    run_kernel(step, parameter, gradient, mean, square, maximum);
    return;
  }
  if (n.shrink != 1) parameter.mul_(n.shrink);
  const at::Tensor g = effective(gradient, parameter, n.maximize, n.weight_decay);
  mean.lerp_(g, 1 - n.beta1);
  square.mul_(n.beta2).addcmul_(g, g, 1 - n.beta2);
  if (maximum.defined()) at::maximum_out(maximum, maximum, square);
  const at::Tensor& used = maximum.defined() ? maximum : square;
  parameter.addcdiv_(mean, used.sqrt().div_(root_correction).add_(n.eps), -step_size);
}

}  // namespace brigade::optim
