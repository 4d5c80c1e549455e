// SPDX-License-Identifier: BSD-3-Clause
// Clips gradients by their norm.
//
//   loss.backward();
//   const double norm = brigade::optim::clip_grad_norm(ddp, 1.0);
//   optimizer.step();
//
// It reads the gradients once, and writes them only if they are clipped.
//
// With an optimizer in the backward pass: StepOptions::clip_grad_norm
// (brigade/optim/in_backward.h).
#pragma once
#include "brigade/ddp_core.h"
#include "brigade/export.h"

namespace brigade::optim {

// After backward(), before the step: multiplies the gradients of all parameters that the
// model trains by max_norm / (norm + 1e-6), if that is below 1, and gives the norm before.
// It is torch::nn::utils::clip_grad_norm_(parameters, max_norm), to a relative 1e-6. The
// gradients are averaged, so all ranks find the same bits; not collective. What was done to
// gradients since backward() counts: a mask, or GradScaler::unscale_. Throws ConfigError
// unless max_norm is more than 0.
BRIGADE_API double clip_grad_norm(DdpCore& core, double max_norm);
template <class Ddp>
requires requires(Ddp& ddp) { ddp->core(); }
double clip_grad_norm(Ddp& ddp, double max_norm) {
  return clip_grad_norm(ddp->core(), max_norm);
}

}  // namespace brigade::optim
