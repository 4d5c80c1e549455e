#include "brigade/optim.h"
#include "optim/arithmetic.h"

namespace brigade::optim {

void RpropOptions::check() const {
  detail::require(lr >= 0, kName, "lr", lr, "0 or more");
  detail::require(etas.first > 0 && etas.first < 1, kName, "the first eta", etas.first,
                  "above 0 and below 1");
  detail::require(etas.second > 1, kName, "the second eta", etas.second, "above 1");
  detail::require(step_sizes.first <= step_sizes.second, kName, "the least step size",
                  step_sizes.first, "no larger than the other");
}

void RpropOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                        Slots& slots) const {
  at::Tensor& before = slots.tensor(0);
  at::Tensor& size = slots.tensor(1, lr);
  if (fits_kernel(parameter, gradient)) {
    const kernels::RpropStep step{.eta_minus = static_cast<float>(etas.first),
                                  .eta_plus = static_cast<float>(etas.second),
                                  .least = static_cast<float>(step_sizes.first),
                                  .most = static_cast<float>(step_sizes.second),
                                  .sign = sign_for(maximize)};
    run_kernel(step, parameter, gradient, before, size);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, maximize, 0);
  const at::Tensor turn = g.mul(before);
  at::Tensor factor = at::ones_like(turn);
  factor.masked_fill_(turn.gt(0), etas.second).masked_fill_(turn.lt(0), etas.first);
  size.mul_(factor).clamp_(step_sizes.first, step_sizes.second);
  before.copy_(g.masked_fill(turn.lt(0), 0));
  parameter.addcmul_(before.sign(), size, -1);
}

}  // namespace brigade::optim
