// SPDX-License-Identifier: BSD-3-Clause
// Optimizers that step while gradients still arrive: a parameter changes as soon as its
// bucket is reduced.
//
//   auto adam = std::make_shared<brigade::optim::Adam>(brigade::optim::AdamOptions{});
//   brigade::optim::apply_optimizer_in_backward(ddp, adam);
//   loss(ddp->forward(data), target).backward();  // reduces, steps, drops the gradients
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/export.h"
#include "brigade/hook.h"
#include "brigade/optim/functional.h"

namespace brigade::optim {

struct StepOptions {
  // > 0. Every element of a reduced gradient is clamped to [-value, value] before the step.
  std::optional<double> clip_grad_value = {};
  // > 0. The gradients of the parameters that this optimizer steps are multiplied by
  // clip_grad_norm / (norm + 1e-6), if that is below 1; norm is that of all of them in this
  // pass. It is known only when the last bucket is reduced, so all steps come then, and
  // none is hidden behind the communication any more.
  std::optional<double> clip_grad_norm = {};
};

namespace detail {
BRIGADE_API std::shared_ptr<Hook> hook_then(std::shared_ptr<Hook> hook, Stepper stepper,
                                            const std::vector<at::Tensor>& parameters,
                                            const StepOptions& options);
BRIGADE_API void attach(DdpCore& core, Stepper stepper,
                        const std::vector<at::Tensor>& parameters,
                        const StepOptions& options);
}  // namespace detail

// Returns a hook that reduces a bucket as `hook` does, and then steps those of its
// parameters that are in `parameters`; an empty list means all. Gradients are there after
// backward() as always; do not step with them again. Parameters that no rank used in a pass
// do not step, and nothing steps under no_sync. The hook's state is the inner hook's; the
// optimizer keeps its own. All ranks must do this, with optimizers that do the same. Throws
// ConfigError for bad options.
template <class T>
std::shared_ptr<Hook> hook_then_optimizer(std::shared_ptr<Hook> hook,
                                          std::shared_ptr<T> optimizer,
                                          const std::vector<at::Tensor>& parameters = {},
                                          const StepOptions& options = {}) {
  return detail::hook_then(std::move(hook), stepper_of(std::move(optimizer)), parameters,
                           options);
}

// Does the same behind whatever hook the model has or is given later. These parameters have
// no gradients when backward() returns; without bucket views a gradient is dropped as soon
// as it is in its bucket, so that they are never all there at once. Parameters without an
// optimizer keep their gradients. May be called again for other parameters. Parameters that
// DistributedDataParallel ignores, or that need no gradient, are left alone. To be called
// between iterations, on all ranks. Throws ConfigError for bad options, for a parameter
// that has an optimizer already, and if no parameter is left.
template <class T>
void apply_optimizer_in_backward(DdpCore& core, std::shared_ptr<T> optimizer,
                                 const std::vector<at::Tensor>& parameters = {},
                                 const StepOptions& options = {}) {
  detail::attach(core, stepper_of(std::move(optimizer)), parameters, options);
}
template <class Ddp, class T>
requires requires(Ddp& ddp) { ddp->core(); }
void apply_optimizer_in_backward(Ddp& ddp, std::shared_ptr<T> optimizer,
                                 const std::vector<at::Tensor>& parameters = {},
                                 const StepOptions& options = {}) {
  apply_optimizer_in_backward(ddp->core(), std::move(optimizer), parameters, options);
}

}  // namespace brigade::optim
