#include "brigade/optim.h"
#include "optim/arithmetic.h"

namespace brigade::optim {

void RMSpropOptions::check() const {
  detail::require(lr >= 0, kName, "lr", lr, "0 or more");
  detail::require(alpha >= 0, kName, "alpha", alpha, "0 or more");
  detail::require(eps >= 0, kName, "eps", eps, "0 or more");
  detail::require(weight_decay >= 0, kName, "weight_decay", weight_decay, "0 or more");
  detail::require(momentum >= 0, kName, "momentum", momentum, "0 or more");
}

void RMSpropOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                          Slots& slots) const {
  at::Tensor& square = slots.tensor(0);
  at::Tensor mean = centered ? slots.tensor(1) : at::Tensor();
  at::Tensor velocity = momentum > 0 ? slots.tensor(2) : at::Tensor();
  if (fits_kernel(parameter, gradient)) {
    const kernels::RmspropStep step{.lr = static_cast<float>(lr),
                                    .alpha = static_cast<float>(alpha),
                                    .rest = static_cast<float>(1 - alpha),
                                    .eps = static_cast<float>(eps),
                                    .weight_decay = static_cast<float>(weight_decay),
                                    .momentum = static_cast<float>(momentum),
                                    .sign = sign_for(maximize)};
    run_kernel(step, parameter, gradient, square, mean, velocity);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, maximize, weight_decay);
  square.mul_(alpha).addcmul_(g, g, 1 - alpha);
  at::Tensor spread = square;
  if (centered) {
    mean.lerp_(g, 1 - alpha);
    spread = square.addcmul(mean, mean, -1);
  }
  const at::Tensor root = spread.sqrt().add_(eps);
  if (momentum > 0) {
    velocity.mul_(momentum).addcdiv_(g, root);
    parameter.add_(velocity, -lr);
  } else {
    parameter.addcdiv_(g, root, -lr);
  }
}

}  // namespace brigade::optim
