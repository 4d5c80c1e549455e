#include "brigade/local_sgd/local_sgd.h"

#include "local_sgd/local_training.h"

namespace brigade::optim {

struct LocalSGD::State {
  State(DdpCore& core, InnerStep inner, const LocalSGDOptions& options)
      : core(core), inner(std::move(inner)), training(core.group(), options, core.hook()) {}
  DdpCore& core;
  const InnerStep inner;
  LocalTraining training;
};

LocalSGD::LocalSGD(DdpCore& core, InnerStep step, LocalSGDOptions options, int)
    : state_(std::make_unique<State>(core, std::move(step), options)) {
  core.set_hook(state_->training.hook());
  state_->training.watch_for_join([model = core.watch()] { return model.joining(); });
}

LocalSGD::~LocalSGD() = default;

void LocalSGD::step() {
  State& s = *state_;
  if (s.core.hook() != s.training.hook()) {
    throw Error("LocalSGD::step: the model's hook is '" +
                (s.core.hook() ? s.core.hook()->name() : "none") +
                "' now; set a hook before LocalSGD is made, which goes on using it");
  }
  if (s.inner) s.inner();
  s.training.after_step(s.core.parameters());
}

void LocalSGD::finish() {
  state_->training.averager().average_now(state_->core.parameters());
}

int64_t LocalSGD::steps() const { return state_->training.averager().step(); }
bool LocalSGD::is_local() const { return state_->training.is_local(); }
ModelAverager& LocalSGD::averager() { return state_->training.averager(); }
PostLocalSGDHook& LocalSGD::hook() { return state_->training.local(); }
int64_t LocalSGD::bytes_sent() const {
  return state_->core.hook_stats().total.bytes_sent +
         state_->training.averager().bytes_sent();
}
void LocalSGD::set_steps(int64_t steps) { state_->training.set_steps(steps); }

}  // namespace brigade::optim
