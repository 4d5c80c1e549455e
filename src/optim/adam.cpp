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

}  // namespace brigade::optim
