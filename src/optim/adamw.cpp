#include "brigade/optim/adamw.h"

#include "optim/adam_step.h"

namespace brigade::optim {

void AdamWOptions::check() const { check_adam(*this); }

void AdamWOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                        Slots& slots) const {
  adam_step(*this, {.shrink = 1 - lr * weight_decay}, parameter, gradient, slots);
}

}  // namespace brigade::optim
