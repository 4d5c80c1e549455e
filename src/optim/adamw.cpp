#include "brigade/optim.h"
#include "optim/adam_step.h"
#include "optim/gpu_steps.h"

namespace brigade::optim {

void AdamWOptions::check() const { check_adam(*this); }

void AdamWOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                        Slots& slots) const {
  adam_step(*this, {.shrink = 1 - lr * weight_decay}, parameter, gradient, slots);
}

void AdamWOptions::step_on_gpu(const std::vector<SlotStep>& steps) const {
  adam_on_gpu(
      *this, [](auto&&... lists) { at::_fused_adamw_(lists...); }, steps);
}

}  // namespace brigade::optim
