#include "brigade/optim.h"
#include "optim/adam_step.h"
#include "optim/gpu_steps.h"

namespace brigade::optim {

void AdamOptions::check() const { check_adam(*this); }

void AdamOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                       Slots& slots) const {
  adam_step(*this, {.added = weight_decay}, parameter, gradient, slots);
}

void AdamOptions::step_on_gpu(const std::vector<SlotStep>& steps) const {
  adam_on_gpu(
      *this, [](auto&&... lists) { at::_fused_adam_(lists...); }, steps);
}

void AdamWOptions::check() const { check_adam(*this); }

void AdamWOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                        Slots& slots) const {
  adam_step(*this, {.shrink = 1 - lr * weight_decay}, parameter, gradient, slots);
}

void AdamWOptions::step_on_gpu(const std::vector<SlotStep>& steps) const {
  adam_on_gpu(
      *this, [](auto&&... lists) { at::_fused_adamw_(lists...); }, steps);
}

void AdamaxOptions::check() const { check_adam(*this); }

void AdamaxOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                         Slots& slots) const {
  at::Tensor& mean = slots.tensor(0);
  at::Tensor& largest = slots.tensor(1);
  const auto [beta1, beta2] = betas;
  const double step_size = lr / (1 - std::pow(beta1, static_cast<double>(slots.step)));
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdamaxStep step{.step_size = static_cast<float>(step_size),
                                   .beta1 = static_cast<float>(beta1),
                                   .rest1 = static_cast<float>(1 - beta1),
                                   .beta2 = static_cast<float>(beta2),
                                   .eps = static_cast<float>(eps),
                                   .weight_decay = static_cast<float>(weight_decay),
                                   .sign = sign_for(maximize)};
    run_kernel(step, parameter, gradient, mean, largest);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, maximize, weight_decay);
  mean.lerp_(g, 1 - beta1);
  at::maximum_out(largest, largest.mul_(beta2), g.abs().add_(eps));
  parameter.addcdiv_(mean, largest, -step_size);
}

}  // namespace brigade::optim
