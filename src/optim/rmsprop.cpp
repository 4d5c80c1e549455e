#include "brigade/optim/rmsprop.h"

#include "optim/arithmetic.h"

namespace brigade::optim {

void RMSpropOptions::check() const {
  detail::require(lr >= 0, "rmsprop", "lr", lr, "0 or more");
  detail::require(alpha >= 0, "rmsprop", "alpha", alpha, "0 or more");
  detail::require(eps >= 0, "rmsprop", "eps", eps, "0 or more");
  detail::require(weight_decay >= 0, "rmsprop", "weight_decay", weight_decay, "0 or more");
  detail::require(momentum >= 0, "rmsprop", "momentum", momentum, "0 or more");
}

std::vector<std::string_view> RMSprop::slot_names() const {
  return {"square_avg", "grad_avg", "momentum_buffer"};
}

void RMSprop::step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) {
  const RMSpropOptions& o = options(parameter);
  at::Tensor& square = slot(slots, 0);
  at::Tensor mean = o.centered ? slot(slots, 1) : at::Tensor();
  at::Tensor momentum = o.momentum > 0 ? slot(slots, 2) : at::Tensor();
  if (fits_kernel(parameter, gradient)) {
    const kernels::RmspropStep step{.lr = static_cast<float>(o.lr),
                                    .alpha = static_cast<float>(o.alpha),
                                    .rest = static_cast<float>(1 - o.alpha),
                                    .eps = static_cast<float>(o.eps),
                                    .weight_decay = static_cast<float>(o.weight_decay),
                                    .momentum = static_cast<float>(o.momentum),
                                    .sign = sign_for(o.maximize)};
    run_kernel(step, parameter, gradient, square, mean, momentum);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, o.maximize, o.weight_decay);
  square.mul_(o.alpha).addcmul_(g, g, 1 - o.alpha);
  at::Tensor spread = square;
  if (o.centered) {
    mean.lerp_(g, 1 - o.alpha);
    spread = square.addcmul(mean, mean, -1);
  }
  const at::Tensor root = spread.sqrt().add_(o.eps);
  if (o.momentum > 0) {
    momentum.mul_(o.momentum).addcdiv_(g, root);
    parameter.add_(momentum, -o.lr);
  } else {
    parameter.addcdiv_(g, root, -o.lr);
  }
}

}  // namespace brigade::optim
