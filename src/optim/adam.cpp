#include "brigade/optim/adam.h"

#include "optim/adam_step.h"

namespace brigade::optim {

void AdamOptions::check() const {
  detail::require(lr >= 0, "adam", "lr", lr, "0 or more");
  detail::require(eps >= 0, "adam", "eps", eps, "0 or more");
  for (double beta : {betas.first, betas.second}) {
    detail::require(beta >= 0 && beta < 1, "adam", "a beta", beta,
                    "at least 0 and below 1");
  }
  detail::require(weight_decay >= 0, "adam", "weight_decay", weight_decay, "0 or more");
}

std::vector<std::string_view> Adam::slot_names() const {
  return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
}

void Adam::step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) {
  const AdamOptions& o = options(parameter);
  const AdamNumbers numbers{.lr = o.lr,
                            .beta1 = o.betas.first,
                            .beta2 = o.betas.second,
                            .eps = o.eps,
                            .weight_decay = o.weight_decay,
                            .shrink = 1,
                            .maximize = o.maximize,
                            .step = slots.step};
  adam_step(numbers, parameter, gradient, slot(slots, 0), slot(slots, 1),
            o.amsgrad ? slot(slots, 2) : at::Tensor());
}

}  // namespace brigade::optim
