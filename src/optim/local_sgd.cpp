#include "brigade/optim/local_sgd.h"

namespace brigade::optim {
namespace {

// What the hook and its owner both know.
struct Shared {
  std::shared_ptr<ModelAverager> averager;
  int64_t warmup_steps;
  int64_t patience;
  // Backward passes since the owner's last step.
  int64_t passes = 0;
  bool owned = true;
};

// The model's hook. The owner's count of steps decides what is local, and a loop that
// forgot its owner is found out.
class OwnedHook : public Hook {
 public:
  OwnedHook(std::shared_ptr<PostLocalSGDHook> local, std::shared_ptr<Shared> shared)
      : local_(std::move(local)), shared_(std::move(shared)) {}

  std::string name() const override { return local_->name(); }
  std::string fingerprint() const override {
    return local_->fingerprint() + " with " + shared_->averager->fingerprint();
  }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return local_->reduce(std::move(bucket), comm);
  }
  void begin_pass(const HookPass& pass) override {
    check_owner();
    if (pass.complete) ++shared_->passes;
    local_->set_iteration(shared_->averager->step());
    local_->begin_pass(pass);
  }
  bool takes_sparse() const override { return local_->takes_sparse(); }
  HookState state() const override { return local_->state(); }
  void load_state(const HookState& state) override { local_->load_state(state); }
  void reset() override { local_->reset(); }
  void check_dtype(at::ScalarType dtype) const override { local_->check_dtype(dtype); }

 private:
  void check_owner() const {
    if (!shared_->owned) {
      throw Error(
          "the model's LocalSGD is gone, but its hook is still set: keep LocalSGD as long "
          "as the model trains, or set another hook");
    }
    if (shared_->averager->step() >= shared_->warmup_steps &&
        shared_->passes >= shared_->patience) {
      throw Error("there were " + std::to_string(shared_->passes) +
                  " backward passes since LocalSGD::step() was last called: the replicas "
                  "drift apart. Call it in place of the optimizer's step()");
    }
  }

  const std::shared_ptr<PostLocalSGDHook> local_;
  const std::shared_ptr<Shared> shared_;
};

std::shared_ptr<ModelAverager> make_averager(const ProcessGroup& group,
                                             const LocalSGDOptions& options) {
  if ((options.period != 0) == !options.levels.empty()) {
    throw ConfigError("LocalSGD: period is " + std::to_string(options.period) +
                      " and levels has " + std::to_string(options.levels.size()) +
                      ", but exactly one of them must be given: .period = 16 for a mean "
                      "over all ranks at "
                      "every 16th step, .levels for several groups of ranks");
  }
  if (options.warmup_steps < 0) {
    throw ConfigError("LocalSGD: warmup_steps is " + std::to_string(options.warmup_steps) +
                      ", but must be 0 or more: 0 is local from the first step on");
  }
  if (options.levels.empty()) {
    return std::make_shared<PeriodicModelAverager>(
        group, PeriodicModelAveragerOptions{options.period, options.warmup_steps});
  }
  return std::make_shared<HierarchicalModelAverager>(
      group, HierarchicalModelAveragerOptions{options.levels, options.warmup_steps});
}

// Several passes may make one step, but not this many.
int64_t patience_of(const LocalSGDOptions& options) {
  const int64_t period =
      options.levels.empty() ? options.period : options.levels.back().period;
  return std::max<int64_t>(64, 2 * period);
}

}  // namespace

struct LocalSGD::State {
  DdpCore& core;
  InnerStep inner;
  std::shared_ptr<Shared> shared;
  std::shared_ptr<PostLocalSGDHook> local;
  std::shared_ptr<Hook> hook;
};

LocalSGD::LocalSGD(DdpCore& core, InnerStep step, LocalSGDOptions options, int) {
  auto shared = std::make_shared<Shared>();
  shared->averager = make_averager(core.group(), options);
  shared->warmup_steps = options.warmup_steps;
  shared->patience = patience_of(options);
  PostLocalSGDOptions hook_options;
  hook_options.subgroup = options.subgroup;
  hook_options.start_localSGD_iter = options.warmup_steps;
  hook_options.post_local_gradient_allreduce = options.post_local_gradient_allreduce;
  auto local = make_post_local_sgd(hook_options, core.hook());
  auto hook = std::make_shared<OwnedHook>(local, shared);
  core.set_hook(hook);
  state_.reset(new State{core, std::move(step), shared, local, hook});
}

LocalSGD::~LocalSGD() { state_->shared->owned = false; }

void LocalSGD::step() {
  State& s = *state_;
  if (s.core.hook() != s.hook) {
    throw Error("LocalSGD::step: the model's hook is '" +
                (s.core.hook() ? s.core.hook()->name() : "none") +
                "' now; set a hook before LocalSGD is made, which goes on using it");
  }
  if (s.inner) s.inner();
  s.shared->averager->average_parameters(s.core.parameters());
  s.shared->passes = 0;
}

void LocalSGD::finish() {
  state_->shared->averager->average_now(state_->core.parameters());
}

int64_t LocalSGD::steps() const { return state_->shared->averager->step(); }
bool LocalSGD::is_local() const { return steps() >= state_->shared->warmup_steps; }
ModelAverager& LocalSGD::averager() { return *state_->shared->averager; }
PostLocalSGDHook& LocalSGD::hook() { return *state_->local; }
int64_t LocalSGD::bytes_sent() const {
  return state_->core.hook_stats().total.bytes_sent +
         state_->shared->averager->bytes_sent();
}
void LocalSGD::set_steps(int64_t steps) {
  state_->shared->averager->set_step(steps);
  state_->local->set_iteration(steps);
}

}  // namespace brigade::optim
