// The code that Adam, AdamW and Adamax share.
#pragma once
#include <cmath>

#include "brigade/optim.h"
#include "optim/arithmetic.h"

namespace brigade::optim {

// Throws ConfigError for options of Adam, AdamW or Adamax that are out of range.
template <class Options>
void check_adam(const Options& o) {
  const auto at_least_0 = [](const char* field, double value) {
    detail::require(value >= 0, Options::kName, field, value, "0 or more");
  };
  at_least_0("lr", o.lr);
  at_least_0("eps", o.eps);
  for (double beta : {o.betas.first, o.betas.second}) {
    detail::require(beta >= 0 && beta < 1, Options::kName, "a beta", beta,
                    "at least 0 and below 1");
  }
  at_least_0("weight_decay", o.weight_decay);
}

// The form of the weight decay.
struct AdamDecay {
  double added = 0;   // this many times the parameter is added to the gradient
  double shrink = 1;  // the parameter is first multiplied by it
};

template <class Options>
void adam_step(const Options& o, const AdamDecay& decay, at::Tensor& parameter,
               const at::Tensor& gradient, Slots& slots) {
  const auto [beta1, beta2] = o.betas;
  at::Tensor& mean = slots.tensor(0);
  at::Tensor& square = slots.tensor(1);
  at::Tensor maximum = o.amsgrad ? slots.tensor(2) : at::Tensor();
  const auto steps = static_cast<double>(slots.step);
  const double step_size = o.lr / (1 - std::pow(beta1, steps));
  const double root_correction = std::sqrt(1 - std::pow(beta2, steps));
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdamStep step{.step_size = static_cast<float>(step_size),
                                 .beta1 = static_cast<float>(beta1),
                                 .rest1 = static_cast<float>(1 - beta1),
                                 .beta2 = static_cast<float>(beta2),
                                 .rest2 = static_cast<float>(1 - beta2),
                                 .root_correction = static_cast<float>(root_correction),
                                 .eps = static_cast<float>(o.eps),
                                 .weight_decay = static_cast<float>(decay.added),
                                 .sign = sign_for(o.maximize),
                                 .shrink = static_cast<float>(decay.shrink)};
    run_kernel(step, parameter, gradient, mean, square, maximum);
    return;
  }
  if (decay.shrink != 1) parameter.mul_(decay.shrink);
  const at::Tensor g = effective(gradient, parameter, o.maximize, decay.added);
  mean.lerp_(g, 1 - beta1);
  square.mul_(beta2).addcmul_(g, g, 1 - beta2);
  if (maximum.defined()) at::maximum_out(maximum, maximum, square);
  const at::Tensor& used = maximum.defined() ? maximum : square;
  parameter.addcdiv_(mean, used.sqrt().div_(root_correction).add_(o.eps), -step_size);
}

}  // namespace brigade::optim
