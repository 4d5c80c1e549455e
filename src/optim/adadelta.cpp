#include "brigade/optim.h"
#include "optim/arithmetic.h"

namespace brigade::optim {

void AdadeltaOptions::check() const {
  detail::require(lr >= 0, kName, "lr", lr, "0 or more");
  detail::require(rho >= 0 && rho <= 1, kName, "rho", rho, "between 0 and 1");
  detail::require(eps >= 0, kName, "eps", eps, "0 or more");
  detail::require(weight_decay >= 0, kName, "weight_decay", weight_decay, "0 or more");
}

void AdadeltaOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                           Slots& slots) const {
  at::Tensor& square = slots.tensor(0);
  at::Tensor& changes = slots.tensor(1);
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdadeltaStep step{.lr = static_cast<float>(lr),
                                     .rho = static_cast<float>(rho),
                                     .rest = static_cast<float>(1 - rho),
                                     .eps = static_cast<float>(eps),
                                     .weight_decay = static_cast<float>(weight_decay),
                                     .sign = sign_for(maximize)};
    run_kernel(step, parameter, gradient, square, changes);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, maximize, weight_decay);
  square.mul_(rho).addcmul_(g, g, 1 - rho);
  const at::Tensor root = square.add(eps).sqrt_();
  const at::Tensor change = changes.add(eps).sqrt_().div_(root).mul_(g);
  changes.mul_(rho).addcmul_(change, change, 1 - rho);
  parameter.add_(change, -lr);
}

}  // namespace brigade::optim
