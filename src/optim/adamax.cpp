#include "brigade/optim/adamax.h"

#include <cmath>

#include "optim/arithmetic.h"

namespace brigade::optim {

void AdamaxOptions::check() const {
  detail::require(lr >= 0, "adamax", "lr", lr, "0 or more");
  detail::require(eps >= 0, "adamax", "eps", eps, "0 or more");
  for (double beta : {betas.first, betas.second}) {
    detail::require(beta >= 0 && beta < 1, "adamax", "a beta", beta,
                    "at least 0 and below 1");
  }
  detail::require(weight_decay >= 0, "adamax", "weight_decay", weight_decay, "0 or more");
}

std::vector<std::string_view> Adamax::slot_names() const { return {"exp_avg", "exp_inf"}; }

void Adamax::step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) {
  const AdamaxOptions& o = options(parameter);
  at::Tensor& mean = slot(slots, 0);
  at::Tensor& largest = slot(slots, 1);
  const auto [beta1, beta2] = o.betas;
  const double step_size = o.lr / (1 - std::pow(beta1, static_cast<double>(slots.step)));
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdamaxStep step{.step_size = static_cast<float>(step_size),
                                   .beta1 = static_cast<float>(beta1),
                                   .rest1 = static_cast<float>(1 - beta1),
                                   .beta2 = static_cast<float>(beta2),
                                   .eps = static_cast<float>(o.eps),
                                   .weight_decay = static_cast<float>(o.weight_decay),
                                   .sign = sign_for(o.maximize)};
    run_kernel(step, parameter, gradient, mean, largest);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, o.maximize, o.weight_decay);
  mean.lerp_(g, 1 - beta1);
  at::maximum_out(largest, largest.mul_(beta2), g.abs().add_(o.eps));
  parameter.addcdiv_(mean, largest, -step_size);
}

}  // namespace brigade::optim
