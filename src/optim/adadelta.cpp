#include "brigade/optim/adadelta.h"

#include "optim/arithmetic.h"

namespace brigade::optim {

void AdadeltaOptions::check() const {
  detail::require(lr >= 0, "adadelta", "lr", lr, "0 or more");
  detail::require(rho >= 0 && rho <= 1, "adadelta", "rho", rho, "between 0 and 1");
  detail::require(eps >= 0, "adadelta", "eps", eps, "0 or more");
  detail::require(weight_decay >= 0, "adadelta", "weight_decay", weight_decay, "0 or more");
}

std::vector<std::string_view> Adadelta::slot_names() const {
  return {"square_avg", "acc_delta"};
}

void Adadelta::step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) {
  const AdadeltaOptions& o = options(parameter);
  at::Tensor& square = slot(slots, 0);
  at::Tensor& changes = slot(slots, 1);
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdadeltaStep step{.lr = static_cast<float>(o.lr),
                                     .rho = static_cast<float>(o.rho),
                                     .rest = static_cast<float>(1 - o.rho),
                                     .eps = static_cast<float>(o.eps),
                                     .weight_decay = static_cast<float>(o.weight_decay),
                                     .sign = sign_for(o.maximize)};
    run_kernel(step, parameter, gradient, square, changes);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, o.maximize, o.weight_decay);
  square.mul_(o.rho).addcmul_(g, g, 1 - o.rho);
  const at::Tensor root = square.add(o.eps).sqrt_();
  const at::Tensor change = changes.add(o.eps).sqrt_().div_(root).mul_(g);
  changes.mul_(o.rho).addcmul_(change, change, 1 - o.rho);
  parameter.add_(change, -o.lr);
}

}  // namespace brigade::optim
