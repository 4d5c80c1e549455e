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
      velocity.add_(g);  // added to zeros: g may be sparse
    } else {
      velocity.mul_(momentum).add_(g, 1 - dampening);
    }
    g = nesterov ? velocity.mul(momentum).add_(g) : velocity;
  }
  parameter.add_(g, -lr);
}

void SGDOptions::step_on_gpu(const std::vector<SlotStep>& steps) const {
  // The kernel takes steps that begin a velocity separately from the others.
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

namespace {

// Steps only the rows that the gradient has.
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
