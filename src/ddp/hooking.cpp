// Connects a hook to the Reducer.
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "ddp/core_state.h"

namespace brigade {

void DdpCore::State::make_engine(const std::string& name) {
  close_engine();
  const ProcessGroup& over = hook_group ? hook_group : group;
  engine = engine::Engine::make(over, name.empty() ? over.unique_name("engine") : name);
  engine->set_hook(hook, /*agreed=*/true);  // check_same_hook() has verified it
  engine->trace().record(tracing);
  hook_agreed = false;
}

void DdpCore::State::close_engine() {
  if (!engine) return;
  engine->close();
  engine->trace().move_to(trace);
  engine.reset();
}

void DdpCore::State::register_hook() {
  engine::ReducerHook::Runner runner;
  runner.run = [weak = weak_from_this(), engine = engine,
                names = parameter_names](const c10d::GradBucket& bucket) {
    if (auto state = weak.lock()) state->before_bucket(bucket);
    // This copies the bucket, because the Reducer's lives on its stack.
    return engine->run(Bucket(bucket, names->of(bucket)));
  };
  runner.runs_here = [weak = weak_from_this()] {
    const auto state = weak.lock();
    return state && state->engine && engine::runs_hook_here(*state->engine);
  };
  reducer_hook->attach(*reducer, std::move(runner));
  logger->set_comm_hook(hook->name());
}

// This comes first because the hook may step the bucket's parameters.
void DdpCore::State::before_bucket(const c10d::GradBucket& bucket) {
  // Nothing in this pass needs the low-precision copies any more: the computation that used
  // them has delivered its gradient.
  if (low_precision) low_precision->restore(bucket.getParameters());
  // A pass whose gradients are incomplete keeps its gradients.
  if (!in_backward || !pass_complete) return;
  reducer_hook->drop_at_end_of_backward();
  drop_what_is_in(bucket);
}

void DdpCore::State::check_same_hook() {
  if (engine) engine->throw_if_failed();
  if (hook_agreed) return;
  group.check_same("hooks", hook ? hook->fingerprint() : "none", engine::kSameHook);
  if (engine) check_same_engine();
  hook_agreed = true;
}

// Parameters may have been replaced since the constructor compared them.
void DdpCore::State::check_same_layout() {
  reducer_hook->agree_on_buckets(*reducer, [this](const engine::Buckets& buckets) {
    const auto name = [this](const at::Tensor& parameter) {
      return parameter_names->of(parameter);
    };
    engine::check_same_layout(group, engine::describe_layout(buckets, name));
  });
}

// Ranks that had different hooks for a while have made different numbers of engines. These
// would wait for each other under different names, or over closed connections.
void DdpCore::State::check_same_engine() {
  const auto names = engine->group().gather_texts("engine", engine->name());
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : "|") + name;
  if (std::count(names.begin(), names.end(), names.front()) ==
      static_cast<std::ptrdiff_t>(names.size())) {
    return;
  }
  make_engine(all);
  make_reducer();
}

// A gradient that is in its bucket is no longer needed, so its memory can serve those still
// to come. Where parameters may be unused, the hook must first see which have a gradient,
// and drops them itself.
void DdpCore::State::drop_what_is_in(const c10d::GradBucket& bucket) {
  if (options.gradient_as_bucket_view || may_leave_unused() ||
      bucket.getBuffer().is_sparse()) {
    return;
  }
  for (const at::Tensor& parameter : bucket.getParameters()) {
    if (stepped.contains(parameter.unsafeGetTensorImpl()))
      parameter.mutable_grad() = at::Tensor();
  }
}

std::shared_ptr<Hook> DdpCore::State::around(std::shared_ptr<Hook> callers) const {
  if (options.mixed_precision) {
    const MixedPrecision& dtypes = *options.mixed_precision;
    const auto dtype = dtypes.reduce_dtype ? dtypes.reduce_dtype : dtypes.param_dtype;
    if (dtype) callers = reduce_in(*dtype, std::move(callers));
  }
  return in_backward ? in_backward->behind(std::move(callers)) : callers;
}

void DdpCore::set_hook(std::shared_ptr<Hook> hook, ProcessGroup group) {
  State& s = *state_;
  if (torch::autograd::get_current_graph_task_id() != -1 ||
      (s.engine && s.engine->busy())) {
    throw Error("set_hook: a backward pass is under way; set the hook between iterations");
  }
  s.restore_full_precision();
  auto used = s.around(hook);
  for (const at::Tensor& parameter : s.trained) {
    if (used) used->check_dtype(parameter.scalar_type());
  }
  if (used) used->set_parameters(s.names);
  const bool same_group =
      s.hook_group ? group && group.c10d() == s.hook_group.c10d() : !group;
  s.callers_hook = std::move(hook);
  s.hook = std::move(used);
  s.hook_group = std::move(group);
  s.hook_agreed = false;
  if (s.hook && s.engine && same_group) {
    s.engine->set_hook(s.hook, /*agreed=*/true);
    s.logger->set_comm_hook(s.hook->name());
    return;
  }
  const bool was_hooked = s.engine != nullptr;
  s.close_engine();
  if (s.hook) s.make_engine();
  if (was_hooked) {
    s.make_reducer();  // the old one keeps its hook for ever
  } else if (s.hook) {
    s.register_hook();
  }
}

const std::shared_ptr<Hook>& DdpCore::hook() const { return state_->callers_hook; }

void DdpCore::set_in_backward(std::shared_ptr<InBackward> in_backward) {
  State& s = *state_;
  const bool was_on = s.in_backward != nullptr;
  s.in_backward = std::move(in_backward);
  s.stepped.clear();
  if (s.in_backward) {
    for (const at::Tensor& parameter : s.in_backward->parameters())
      s.stepped.insert(parameter.unsafeGetTensorImpl());
    s.reducer_hook->set_dropped(s.in_backward->parameters());
  }
  set_hook(s.callers_hook, s.hook_group);
  if (was_on != (s.in_backward != nullptr)) s.make_reducer();  // it can't unlearn it
}
const std::shared_ptr<InBackward>& DdpCore::in_backward() const {
  return state_->in_backward;
}

void DdpCore::record_trace(bool on) {
  state_->tracing = on;
  if (state_->engine) state_->engine->trace().record(on);
}

std::vector<TraceEvent> DdpCore::take_trace() {
  if (state_->engine) state_->engine->trace().move_to(state_->trace);
  return std::exchange(state_->trace, {});
}

HookStats DdpCore::hook_stats() const {
  return state_->engine ? state_->engine->stats() : HookStats{};
}

}  // namespace brigade
