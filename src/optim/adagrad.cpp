#include "brigade/optim.h"
#include "optim/arithmetic.h"

namespace brigade::optim {
namespace {

// Only the rows that the gradient has.
void step_sparse(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& sum,
                 double step_size, const AdagradOptions& o) {
  const at::Tensor g = (o.maximize ? gradient.neg() : gradient).coalesce();
  const auto like_g = [&](const at::Tensor& values) {
    return at::sparse_coo_tensor(g.indices(), values, g.sizes());
  };
  sum.add_(like_g(g.values().pow(2)));
  const at::Tensor root = sum.sparse_mask(g)._values().sqrt_().add_(o.eps);
  parameter.add_(like_g(g.values() / root), -step_size);
}

}  // namespace

void AdagradOptions::check() const {
  detail::require(lr >= 0, kName, "lr", lr, "0 or more");
  detail::require(lr_decay >= 0, kName, "lr_decay", lr_decay, "0 or more");
  detail::require(weight_decay >= 0, kName, "weight_decay", weight_decay, "0 or more");
  detail::require(initial_accumulator_value >= 0, kName, "initial_accumulator_value",
                  initial_accumulator_value, "0 or more");
  detail::require(eps >= 0, kName, "eps", eps, "0 or more");
}

void AdagradOptions::step(at::Tensor& parameter, const at::Tensor& gradient,
                          Slots& slots) const {
  at::Tensor& sum = slots.tensor(0, initial_accumulator_value);
  const double step_size = lr / (1 + static_cast<double>(slots.step - 1) * lr_decay);
  if (gradient.is_sparse()) {
    detail::require(weight_decay == 0, kName, "weight_decay", weight_decay,
                    "0 with sparse gradients");
    return step_sparse(parameter, gradient, sum, step_size, *this);
  }
  if (fits_kernel(parameter, gradient)) {
    const kernels::AdagradStep step{.step_size = static_cast<float>(step_size),
                                    .eps = static_cast<float>(eps),
                                    .weight_decay = static_cast<float>(weight_decay),
                                    .sign = sign_for(maximize)};
    run_kernel(step, parameter, gradient, sum);
    return;
  }
  const at::Tensor g = effective(gradient, parameter, maximize, weight_decay);
  sum.addcmul_(g, g);
  parameter.addcdiv_(g, sum.sqrt().add_(eps), -step_size);
}

}  // namespace brigade::optim
