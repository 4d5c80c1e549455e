// SPDX-License-Identifier: BSD-3-Clause
// Clips gradients by their norm, which is measured while they are reduced.
//
//   ddp->set_hook(brigade::optim::measure_norm(brigade::make_hook("int8")));
//   loss.backward();
//   const double norm = brigade::optim::clip_grad_norm(ddp, 1.0);
//   optimizer.step();
//
// torch::nn::utils::clip_grad_norm_ reads all gradients once more, after backward().
// measure_norm adds up the squares of each bucket on the hook's own thread, when the bucket
// is reduced and others are still under way. Hooks with a codec, and the plain mean of a
// number of ranks that is a power of two, take them while they write the result; after
// others the bucket is read once more. Gradients are written only if they are clipped.
//
// With an optimizer in the backward pass: StepOptions::clip_grad_norm
// (brigade/optim/in_backward.h).
#pragma once
#include <memory>

#include "brigade/ddp_core.h"
#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade::optim {

// Reduces as `hook` does, and remembers the norm of what came out. Its state is the inner
// hook's; its name too. Either all ranks measure or none. Throws ConfigError if there is no
// hook.
BRIGADE_API std::shared_ptr<Hook> measure_norm(std::shared_ptr<Hook> hook);

// After backward(), before the step: multiplies the gradients of all parameters that the
// model trains by max_norm / (norm + 1e-6), if that is below 1, and gives the norm before.
// It is torch::nn::utils::clip_grad_norm_(parameters, max_norm), to a relative 1e-6. The
// gradients are averaged, so all ranks find the same; not collective.
//
// The norm is the measured one if the hook is one of measure_norm() and gradients are as
// backward() left them. Else it is computed here, in one pass over them: also after
// GradScaler::unscale_, on another device than the CPU, and where parameters may be unused.
// Throws ConfigError unless max_norm is more than 0.
BRIGADE_API double clip_grad_norm(DdpCore& core, double max_norm);
template <class Ddp>
requires requires(Ddp& ddp) { ddp->core(); }
double clip_grad_norm(Ddp& ddp, double max_norm) {
  return clip_grad_norm(ddp->core(), max_norm);
}

}  // namespace brigade::optim
