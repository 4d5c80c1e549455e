#include "brigade/optim/sgd.h"

#include "optim/arithmetic.h"

namespace brigade::optim {

void SGDOptions::check() const {
  detail::require(lr >= 0, "sgd", "lr", lr, "0 or more");
  detail::require(momentum >= 0, "sgd", "momentum", momentum, "0 or more");
  detail::require(weight_decay >= 0, "sgd", "weight_decay", weight_decay, "0 or more");
  if (!nesterov) return;
  detail::require(momentum > 0, "sgd", "momentum", momentum, "more than 0 with nesterov");
  detail::require(dampening == 0, "sgd", "dampening", dampening, "0 with nesterov");
}

std::vector<std::string_view> SGD::slot_names() const { return {"momentum_buffer"}; }

void SGD::step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) {
  const SGDOptions& o = options(parameter);
  const bool fresh = !slots.tensors[0].defined();
  if (fits_kernel(parameter, gradient)) {
    const kernels::SgdStep step{.lr = static_cast<float>(o.lr),
                                .momentum = static_cast<float>(o.momentum),
                                .damping = static_cast<float>(1 - o.dampening),
                                .weight_decay = static_cast<float>(o.weight_decay),
                                .sign = sign_for(o.maximize),
                                .nesterov = o.nesterov,
                                .fresh = fresh};
    run_kernel(step, parameter, gradient, o.momentum != 0 ? slot(slots, 0) : at::Tensor());
    return;
  }
  at::Tensor g = effective(gradient, parameter, o.maximize, o.weight_decay);
  if (o.momentum != 0) {
    at::Tensor& momentum = slot(slots, 0);
    if (fresh) {
      momentum.add_(g);  // to zeros: g may be sparse
    } else {
      momentum.mul_(o.momentum).add_(g, 1 - o.dampening);
    }
    g = o.nesterov ? momentum.mul(o.momentum).add_(g) : momentum;
  }
  parameter.add_(g, -o.lr);
}

}  // namespace brigade::optim
