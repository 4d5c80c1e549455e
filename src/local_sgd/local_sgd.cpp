#include "brigade/local_sgd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "local_sgd/local_sgd_core.h"

namespace brigade::optim::detail {

InnerStep step_each(
    std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step_param,
    std::vector<at::Tensor> parameters) {
  return [step_param = std::move(step_param), parameters = std::move(parameters)] {
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) step_param(parameter, parameter.grad());
    }
  };
}

}  // namespace brigade::optim::detail

namespace brigade::optim {

struct LocalSGD::State {
  State(DdpCore& model, InnerStep inner, const LocalSGDOptions& options)
      : model(model), inner(std::move(inner)), core(model.group(), options, model.hook()) {}
  DdpCore& model;
  const InnerStep inner;
  LocalSGDCore core;
};

LocalSGD::LocalSGD(Inner inner, DdpCore& core, LocalSGDOptions options)
    : state_(std::make_unique<State>(core, std::move(inner.step), options)) {
  core.set_hook(state_->core.hook());
  state_->core.watch_for_join([model = core.handle()] { return model.joining(); });
}

LocalSGD::~LocalSGD() = default;

void LocalSGD::step() {
  State& s = *state_;
  if (s.model.hook() != s.core.hook()) {
    throw Error("LocalSGD::step: the model's hook is '" +
                (s.model.hook() ? s.model.hook()->name() : "none") +
                "' now; set a hook before LocalSGD is made, which goes on using it");
  }
  if (s.inner) s.inner();
  s.core.after_step(s.model.parameters());
}

void LocalSGD::finish() { state_->core.averager().average_now(state_->model.parameters()); }

int64_t LocalSGD::steps() const { return state_->core.averager().step(); }
bool LocalSGD::is_local() const { return state_->core.is_local(); }
ModelAverager& LocalSGD::averager() { return state_->core.averager(); }
PostLocalSGDHook& LocalSGD::hook() { return state_->core.local(); }
int64_t LocalSGD::bytes_sent() const {
  return state_->model.hook_stats().total.bytes_sent + state_->core.averager().bytes_sent();
}
void LocalSGD::set_steps(int64_t steps) { state_->core.set_steps(steps); }

}  // namespace brigade::optim
