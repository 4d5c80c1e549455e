#include "brigade/optim/adam.h"

#include "optim/adam_step.h"

namespace brigade::optim {

void AdamOptions::check() const { check_adam(*this); }

void AdamOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                       Slots& slots) const {
  adam_step(*this, {.added = weight_decay}, parameter, gradient, slots);
}

}  // namespace brigade::optim
