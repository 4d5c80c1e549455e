#include "local_sgd/local_sgd_core.h"

namespace brigade::optim {
namespace {

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

// Returns how many backward passes may precede one step.
int64_t patience_of(const LocalSGDOptions& options) {
  const int64_t period =
      options.levels.empty() ? options.period : options.levels.back().period;
  return std::max<int64_t>(64, 2 * period);
}

}  // namespace

// The state that the hook and its owner share.
struct LocalSGDCore::Shared {
  std::shared_ptr<ModelAverager> averager;
  int64_t warmup_steps;
  int64_t patience;
  // Counts backward passes since the owner's last step.
  int64_t passes = 0;
  bool owned = true;
  std::function<bool()> joining;
};

// The model's hook. The owner's count of steps decides which steps are local, and a loop
// that does not call its owner gets an error.
class LocalSGDCore::OwnedHook : public HookWrapper {
 public:
  OwnedHook(std::shared_ptr<PostLocalSGDHook> local, std::shared_ptr<Shared> shared)
      : HookWrapper(local), local_(std::move(local)), shared_(std::move(shared)) {}

  std::string name() const override { return local_->name(); }
  std::string fingerprint() const override {
    return local_->fingerprint() + " with " + shared_->averager->fingerprint();
  }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return local_->reduce(std::move(bucket), comm);
  }
  void begin_pass(const HookPass& pass) override {
    check_owner();
    check_join();
    if (pass.complete) ++shared_->passes;
    local_->set_iteration(shared_->averager->step());
    HookWrapper::begin_pass(pass);
  }

 private:
  void check_join() const {
    if (!shared_->joining || !shared_->joining()) return;
    throw ConfigError(
        "LocalSGD can't go with join(): ranks that have no more input would miss the steps "
        "at which the parameters are averaged; give every rank as many inputs");
  }
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

LocalSGDCore::LocalSGDCore(const ProcessGroup& group, const LocalSGDOptions& options,
                           std::shared_ptr<Hook> inner)
    : averager_(make_averager(group, options)),
      shared_(new Shared{averager_, options.warmup_steps, patience_of(options)}) {
  PostLocalSGDOptions hook_options;
  hook_options.subgroup = options.subgroup;
  hook_options.start_localSGD_iter = options.warmup_steps;
  hook_options.post_local_gradient_allreduce = options.post_local_gradient_allreduce;
  local_ = make_post_local_sgd(hook_options, std::move(inner));
  hook_ = std::make_shared<OwnedHook>(local_, shared_);
}

LocalSGDCore::~LocalSGDCore() { shared_->owned = false; }

bool LocalSGDCore::is_local() const { return averager_->step() >= shared_->warmup_steps; }

void LocalSGDCore::after_step(const std::vector<at::Tensor>& parameters) {
  averager_->average_parameters(parameters);
  shared_->passes = 0;
}

void LocalSGDCore::watch_for_join(std::function<bool()> joining) {
  shared_->joining = std::move(joining);
}

void LocalSGDCore::set_steps(int64_t steps) {
  averager_->set_step(steps);
  local_->set_iteration(steps);
}

}  // namespace brigade::optim
