#include "brigade/optim.h"
#include "optim/arithmetic.h"
#include "optim/gpu_steps.h"

namespace brigade::optim {

void SGDOptions::check() const {
  detail::require(lr >= 0, kName, "lr", lr, "0 or more");
  detail::require(momentum >= 0, kName, "momentum", momentum, "0 or more");
  detail::require(weight_decay >= 0, kName, "weight_decay", weight_decay, "0 or more");
  if (!nesterov) return;
  detail::require(momentum > 0, kName, "momentum", momentum, "more than 0 with nesterov");
  detail::require(dampening == 0, kName, "dampening", dampening, "0 with nesterov");
}

void SGDOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                      Slots& slots) const {
  const bool fresh = !slots.tensors[0].defined();
  if (fits_kernel(parameter, gradient)) {
    const kernels::SgdStep step{.lr = static_cast<float>(lr),
                                .momentum = static_cast<float>(momentum),
                                .damping = static_cast<float>(1 - dampening),
                                .weight_decay = static_cast<float>(weight_decay),
                                .sign = sign_for(maximize),
                                .nesterov = nesterov,
                                .fresh = fresh};
    run_kernel(step, parameter, gradient, momentum != 0 ? slots.tensor(0) : at::Tensor());
    return;
  }
  at::Tensor g = effective(gradient, parameter, maximize, weight_decay);
  if (momentum != 0) {
    at::Tensor& velocity = slots.tensor(0);
    if (fresh) {
      velocity.add_(g);  // to zeros: g may be sparse
    } else {
      velocity.mul_(momentum).add_(g, 1 - dampening);
    }
    g = nesterov ? velocity.mul(momentum).add_(g) : velocity;
  }
  parameter.add_(g, -lr);
}

void SGDOptions::step_on_gpu(const std::vector<SlotStep>& steps) const {
  // The kernel takes those whose velocity begins apart from the others.
  std::map<bool, GpuSteps> by_fresh;
  for (const SlotStep& step : steps) {
    const bool fresh = momentum != 0 && !step.slots->tensors[0].defined();
    GpuSteps& list = by_fresh[fresh];
    list.add(step);
    if (momentum != 0) list.first.push_back(step.slots->tensor(0));
  }
  for (auto& [fresh, list] : by_fresh) {
    at::_fused_sgd_(list.parameters, list.gradients, list.first, weight_decay, momentum, lr,
                    dampening, nesterov, maximize, fresh);
  }
}

}  // namespace brigade::optim
