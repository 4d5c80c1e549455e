#include "reduction.h"

#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "future_limit.h"
#include "torch_port/reducer.h"

namespace brigade::python {
namespace {

using Group = c10d::ProcessGroup;

// How much longer than the group's time limit a future may take: a collective's own error,
// at that limit, says more.
constexpr std::chrono::milliseconds kFutureSlack{1000};

struct Open {
  std::mutex mutex;
  std::set<Closeable*> all;
};
Open& open() {
  static auto* const found = new Open;  // outlives whatever is destroyed at exit
  return *found;
}

c10::intrusive_ptr<c10d::Backend> backend_for(Group& group, c10::DeviceType device) {
  try {
    return group.getBackend(device);
  } catch (const c10::Error& error) {
    throw ConfigError("the process group has no backend for " +
                      c10::DeviceTypeName(device, /*lower_case=*/true) +
                      " tensors: " + error.what_without_backtrace());
  }
}

}  // namespace

ProcessGroup adopt(Group& group, c10::DeviceType device) {
  const auto backend = backend_for(group, device);
  // Everything but NCCL takes the way of the CPU: over Gloo groups of our own, made from
  // the group's store.
  const bool nccl = backend->getBackendName() == "nccl";
  const auto type = nccl ? Group::BackendType::NCCL : Group::BackendType::GLOO;
  auto part =
      c10::make_intrusive<Group>(group.getStore(), group.getRank(), group.getSize());
  part->setBackend(device, type, backend);
  part->setDefaultBackend(type);
  ProcessGroup adopted = ProcessGroup::wrap(std::move(part));
  // Alone nothing has to be sent.
  return adopted.size() == 1 ? adopted.duplicate() : adopted;
}

Closeable::Closeable() {
  std::lock_guard lock(open().mutex);
  open().all.insert(this);
}

void Closeable::not_open() {
  std::lock_guard lock(open().mutex);
  open().all.erase(this);
}

void Closeable::close_all() {
  std::lock_guard lock(open().mutex);
  for (Closeable* each : open().all) each->close();
}

Reduction::Reduction(ProcessGroup group, std::shared_ptr<Hook> hook) {
  const std::string name = group.unique_name("engine");
  engine_ = engine::Engine::make(std::move(group), name);
  engine_->set_hook(std::move(hook));
}

Reduction::~Reduction() {
  not_open();
  close();
}

std::shared_ptr<Reduction> Reduction::over(ProcessGroup group) const {
  auto other = std::make_shared<Reduction>(std::move(group), hook());
  std::lock_guard lock(mutex_);
  other->names_ = names_;
  other->pass_ = pass_;
  return other;
}

void Reduction::close() {
  std::shared_ptr<engine::Engine> engine;
  {
    std::lock_guard lock(mutex_);
    engine.swap(engine_);
  }
  if (engine) engine->close();
}

std::shared_ptr<engine::Engine> Reduction::engine() const {
  std::lock_guard lock(mutex_);
  if (!engine_) throw Error("this hook's connections were closed; set it again");
  return engine_;
}

void Reduction::set_names(const std::vector<std::pair<at::Tensor, std::string>>& names) {
  std::lock_guard lock(mutex_);
  for (const auto& [parameter, name] : names) {
    names_.set(parameter, name);
  }
}

std::vector<std::string> Reduction::names_of(const c10d::GradBucket& bucket) {
  std::lock_guard lock(mutex_);
  return names_.of(bucket);
}

void Reduction::set_pass(const HookPass& pass) {
  std::lock_guard lock(mutex_);
  pass_ = pass;
}

void Reduction::set_hook(std::shared_ptr<Hook> hook) {
  engine()->set_hook(std::move(hook));
}

std::shared_ptr<Hook> Reduction::hook() const { return engine()->hook(); }

FuturePtr Reduction::run(const c10d::GradBucket& bucket) {
  const auto engine = this->engine();
  // Buckets come in order, and the first when all of the pass before are done.
  if (bucket.getIndex() == 0) engine->hook()->begin_pass(pass_);
  return engine->run(Bucket(bucket, names_of(bucket)));
}

void Reduction::agree_on(const engine::Buckets& buckets) {
  std::string layout;
  {
    std::lock_guard lock(mutex_);
    const auto name = [this](const at::Tensor& parameter) { return names_.of(parameter); };
    layout = engine::describe_layout(buckets, name);
  }
  engine::agree_on_layout(engine()->group(), layout);
}

FuturePtr Reduction::run_alone(const c10d::GradBucket& bucket) {
  std::string kind = std::to_string(bucket.getIndex());
  for (const at::Tensor& parameter : bucket.getParameters())
    kind += "; " + engine::describe(parameter);
  bool known = false;
  {
    std::lock_guard lock(mutex_);
    known = agreed_.contains(kind);
  }
  if (!known) {
    engine::agree_on_layout(engine()->group(), "bucket " + kind);
    std::lock_guard lock(mutex_);
    agreed_.insert(kind);
  }
  return run(bucket);
}

HookStats Reduction::stats() const { return engine()->stats(); }

void HookSlot::put(std::shared_ptr<Reduction> reduction, Group* group) {
  std::shared_ptr<c10d::CommHookInterface> other;
  std::lock_guard lock(mutex_);
  agreed_on_first_.reset();
  followed_.reset();
  if (group)
    followed_.emplace(c10::intrusive_ptr<Group>::unsafe_reclaim_from_nonowning(group));
  reduction_.swap(reduction);
  other_.swap(other);
}

void HookSlot::put(std::shared_ptr<c10d::CommHookInterface> other, std::string name) {
  std::shared_ptr<Reduction> reduction;
  std::lock_guard lock(mutex_);
  name_of_other_ = std::move(name);
  if (!limit_) limit_ = std::make_shared<FutureLimit>();
  followed_.reset();
  reduction_.swap(reduction);
  other_.swap(other);
}

std::shared_ptr<Reduction> HookSlot::reduction() const {
  std::lock_guard lock(mutex_);
  return reduction_;
}

std::shared_ptr<c10d::CommHookInterface> HookSlot::other() const {
  std::lock_guard lock(mutex_);
  return other_;
}

// All ranks of the new group come here, at the first bucket of their first pass in it.
void HookSlot::follow(const c10::intrusive_ptr<Group>& group, c10::DeviceType device) {
  {
    std::lock_guard lock(mutex_);
    if (!followed_ || followed_->lock() == group) return;
  }
  auto before = reduction();
  auto next = before->over(adopt(*group, device));
  put(std::move(next), group.get());
  before->close();
}

// Buckets are made once, and again after the first pass.
void HookSlot::agree_on_buckets(c10d::Reducer& reducer) {
  const bool first = reducer.should_rebuild_buckets();
  std::shared_ptr<Reduction> current;
  {
    std::lock_guard lock(mutex_);
    if (!reduction_ || agreed_on_first_ == first) return;
    current = reduction_;
  }
  current->agree_on(torch_port::buckets_of(reducer));
  std::lock_guard lock(mutex_);
  agreed_on_first_ = first;
}

FuturePtr HookSlot::run(c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  if (bucket.getIndex() == 0) {
    follow(torch_port::group_of(reducer), bucket.getBufferRef().device().type());
    agree_on_buckets(reducer);
  }
  if (auto current = reduction()) return current->run(bucket);
  return run_other(bucket, reducer);
}

FuturePtr HookSlot::run_other(c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  Group& group = *torch_port::group_of(reducer);
  const auto limit = timeout_of(group);
  std::shared_ptr<FutureLimit> futures;
  std::string late;
  {
    std::lock_guard lock(mutex_);
    futures = limit_;
    late = c10::str("rank ", group.getRank(), ": hook '", name_of_other_, "', bucket ",
                    bucket.getIndex(),
                    ": its future is not complete within the time limit of ", limit.count(),
                    " ms");
  }
  return futures->watch(other()->runHook(bucket), limit + kFutureSlack, std::move(late));
}

at::Tensor HookSlot::result_of(const c10::IValue& value) {
  if (auto current = other()) return current->parseHookResult(value);
  return value.toTensor();
}

std::chrono::milliseconds timeout_of(Group& group) {
  try {
    for (const c10::Device& device : group.getDeviceTypes())
      return group.getBackend(device.type())->getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    // Not every backend has options.
  }
  return kBackendDefaultTimeout;
}

void attach(c10d::Reducer& reducer, std::shared_ptr<HookSlot> slot) {
  engine::BridgeCalls calls;
  calls.before = [slot](const c10d::GradBucket&) {
    slot->gradient_drop->at_end_of_backward();
  };
  // The Reducer owns its hook, so outlives it.
  calls.run = [slot, &reducer](c10d::GradBucket& bucket) {
    return slot->run(bucket, reducer);
  };
  calls.result = [slot](const c10::IValue& value) { return slot->result_of(value); };
  reducer.register_comm_hook(engine::make_bridge(std::move(calls)));
}

}  // namespace brigade::python
