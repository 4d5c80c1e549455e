#include "native_hook.h"

#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/exception_text.h"
#include "bindings.h"
#include "engine/bucket_run.h"
#include "future_limit.h"
#include "torch_port/reducer.h"

namespace brigade::python {
namespace {

using Group = c10d::ProcessGroup;

// A future may take this much longer than the group's time limit, because a collective's
// own error at that limit says more.
constexpr std::chrono::milliseconds kFutureSlack{1000};

struct Open {
  std::mutex mutex;
  std::set<Closeable*> all;
};
Open& open() {
  static auto* const found = new Open;  // must outlive all that is destroyed at exit
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
  // Everything except NCCL is treated like the CPU: Gloo groups of our own, made from the
  // group's store.
  const bool nccl = backend->getBackendName() == "nccl";
  const auto type = nccl ? Group::BackendType::NCCL : Group::BackendType::GLOO;
  auto part =
      c10::make_intrusive<Group>(group.getStore(), group.getRank(), group.getSize());
  part->setBackend(device, type, backend);
  part->setDefaultBackend(type);
  ProcessGroup adopted = ProcessGroup::wrap(std::move(part));
  // For a single rank, duplicate() makes a group that sends nothing.
  return adopted.size() == 1 ? adopted.duplicate() : adopted;
}

ProcessGroup adopt_any(Group& group) {
  return adopt(group, group.getDeviceTypes().front().type());
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

NativeHook::NativeHook(Group& group, c10::DeviceType device, std::shared_ptr<Hook> hook)
    : group_(c10::intrusive_ptr<Group>::unsafe_reclaim_from_nonowning(&group)),
      device_(device),
      hook_(std::move(hook)) {
  backend_for(group, device);  // throws if there is none
}

NativeHook::~NativeHook() {
  not_open();
  close();
}

std::shared_ptr<NativeHook> NativeHook::over(Group& group, c10::DeviceType device) const {
  auto other = std::make_shared<NativeHook>(group, device, hook());
  std::lock_guard lock(mutex_);
  other->names_ = names_;
  other->pass_ = pass_;
  return other;
}

void NativeHook::close() {
  std::shared_ptr<engine::Engine> engine;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    engine.swap(engine_);
  }
  if (engine) engine->close();
}

std::shared_ptr<engine::Engine> NativeHook::engine() const {
  std::lock_guard lock(mutex_);
  return engine_;
}

std::shared_ptr<engine::Engine> NativeHook::connect() {
  std::lock_guard only(connecting_);
  std::shared_ptr<Hook> hook;
  {
    std::lock_guard lock(mutex_);
    if (closed_) throw Error("this hook's connections were closed; set it again");
    if (engine_) return engine_;
    hook = hook_;
  }
  const auto group = group_.lock();
  if (!group) throw Error("the process group of this hook was destroyed; set it again");
  ProcessGroup adopted = adopt(*group, device_);
  const std::string name = adopted.unique_name("engine");
  auto made = engine::Engine::make(std::move(adopted), name);
  made->set_hook(std::move(hook));
  made->set_error(
      [](const HookError& error) { return for_backward(std::make_exception_ptr(error)); });
  std::lock_guard lock(mutex_);
  if (!closed_) engine_ = made;
  return made;
}

void NativeHook::set_names(const std::vector<std::pair<at::Tensor, std::string>>& names) {
  std::lock_guard lock(mutex_);
  for (const auto& [parameter, name] : names) {
    names_.set(parameter, name);
  }
}

std::vector<std::string> NativeHook::names_of(const c10d::GradBucket& bucket) {
  std::lock_guard lock(mutex_);
  return names_.of(bucket);
}

void NativeHook::set_pass(const HookPass& pass) {
  std::lock_guard lock(mutex_);
  pass_ = pass;
}

void NativeHook::set_hook(std::shared_ptr<Hook> hook) {
  std::lock_guard lock(mutex_);
  if (engine_) engine_->set_hook(hook);
  hook_ = std::move(hook);
}

std::shared_ptr<Hook> NativeHook::hook() const {
  std::lock_guard lock(mutex_);
  return hook_;
}

FuturePtr NativeHook::run(const c10d::GradBucket& bucket) {
  const auto engine = connect();
  // Buckets come in order, and the first one after the previous pass is done.
  if (bucket.getIndex() == 0) engine->hook()->begin_pass(pass_);
  return engine->run(Bucket(bucket, names_of(bucket)));
}

void NativeHook::check_same(const engine::Buckets& buckets) {
  std::string layout;
  {
    std::lock_guard lock(mutex_);
    const auto name = [this](const at::Tensor& parameter) { return names_.of(parameter); };
    layout = engine::describe_layout(buckets, name);
  }
  const auto engine = connect();
  {
    const engine::Engine::Waiting waiting(*engine);
    const std::string place = engine->name() + "/layout" + std::to_string(layouts_++);
    meet(engine->group(), place, [&] { engine->throw_if_failed(); });
  }
  engine::check_same_layout(engine->group(), layout);
}

FuturePtr NativeHook::run_alone(const c10d::GradBucket& bucket) {
  std::string kind = std::to_string(bucket.getIndex());
  for (const at::Tensor& parameter : bucket.getParameters())
    kind += "; " + engine::describe(parameter);
  bool known = false;
  {
    std::lock_guard lock(mutex_);
    known = agreed_.contains(kind);
  }
  if (!known) {
    engine::check_same_layout(connect()->group(), "bucket " + kind);
    std::lock_guard lock(mutex_);
    agreed_.insert(kind);
  }
  return run(bucket);
}

HookStats NativeHook::stats() const {
  const auto engine = this->engine();
  return engine ? engine->stats() : HookStats{};
}

void HookSlot::put(std::shared_ptr<NativeHook> reduction, Group* group) {
  std::shared_ptr<c10d::CommHookInterface> other;
  std::lock_guard lock(mutex_);
  reducer_hook->forget_buckets();
  followed_.reset();
  if (group)
    followed_.emplace(c10::intrusive_ptr<Group>::unsafe_reclaim_from_nonowning(group));
  reduction_.swap(reduction);
  other_.swap(other);
}

void HookSlot::put(std::shared_ptr<c10d::CommHookInterface> other, std::string name) {
  std::shared_ptr<NativeHook> reduction;
  std::lock_guard lock(mutex_);
  name_of_other_ = std::move(name);
  if (!limit_) limit_ = std::make_shared<FutureLimit>();
  followed_.reset();
  reduction_.swap(reduction);
  other_.swap(other);
}

std::shared_ptr<NativeHook> HookSlot::reduction() const {
  std::lock_guard lock(mutex_);
  return reduction_;
}

std::shared_ptr<c10d::CommHookInterface> HookSlot::other() const {
  std::lock_guard lock(mutex_);
  return other_;
}

// All ranks of the new group call this, at the first bucket of their first pass in it.
void HookSlot::follow(const c10::intrusive_ptr<Group>& group, c10::DeviceType device) {
  {
    std::lock_guard lock(mutex_);
    if (!followed_ || followed_->lock() == group) return;
  }
  auto before = reduction();
  auto next = before->over(*group, device);
  put(std::move(next), group.get());
  before->close();
}

void HookSlot::announce(Group& group, const std::string& model, const std::string& hook) {
  auto check = std::make_unique<HookCheck>(group, model, hook);
  std::lock_guard lock(mutex_);
  check_.swap(check);
  announced_to_.emplace(c10::intrusive_ptr<Group>::unsafe_reclaim_from_nonowning(&group));
}

void HookSlot::check(const c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  std::unique_ptr<HookCheck> check;
  std::shared_ptr<engine::Engine> engine;
  const auto& group = torch_port::group_of(reducer);
  {
    std::lock_guard lock(mutex_);
    check.swap(check_);
    if (!check || announced_to_->lock() != group) return;
    if (reduction_) engine = reduction_->engine();
  }
  std::function<std::vector<int>()> busy;
  if (engine) busy = [engine] { return engine->ranks_in_backward(); };
  try {
    check->check(*group, bucket.getBuffer(), busy);
  } catch (const MismatchError& error) {
    if (engine) engine->fail({.kind = Failure::mismatch, .text = error.what()});
    throw;
  }
}

namespace {

// The slot that runs its Python function on this thread now.
thread_local const HookSlot* slot_at_work = nullptr;

class AtWork {
 public:
  explicit AtWork(const HookSlot& slot) : before_(std::exchange(slot_at_work, &slot)) {}
  ~AtWork() { slot_at_work = before_; }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  const HookSlot* const before_;
};

// In join() the Reducer's own all-reduce may divide by fewer ranks than there are, so the
// plain mean that replaces it does too.
void scale_in_join(const Hook& hook, c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  if (!hook.is_plain_mean()) return;
  const int ranks = torch_port::group_of(reducer)->getSize();
  const int divisor = torch_port::divisor_of(reducer);
  if (divisor == ranks) return;
  at::Tensor gradients = bucket.getBuffer();
  if (gradients.is_sparse()) gradients = gradients._values();
  gradients.mul_(static_cast<double>(ranks) / divisor);
}

}  // namespace

FuturePtr HookSlot::run(c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  if (bucket.getIndex() == 0) {
    check(bucket, reducer);
    follow(torch_port::group_of(reducer), bucket.getBufferRef().device().type());
    if (const auto current = reduction())
      reducer_hook->agree_on_buckets(
          reducer, [&](const engine::Buckets& buckets) { current->check_same(buckets); });
  }
  FuturePtr future;
  if (auto current = reduction()) {
    scale_in_join(*current->hook(), bucket, reducer);
    future = current->run(bucket);
  } else {
    future = run_other(bucket, reducer);
  }
  wait_.add(bucket, future);
  return future;
}

FuturePtr HookSlot::run_other(c10d::GradBucket& bucket, c10d::Reducer& reducer) {
  Group& group = *torch_port::group_of(reducer);
  const auto limit = timeout_of(group);
  const auto hook = other();
  std::shared_ptr<FutureLimit> futures;
  std::string place;
  {
    std::lock_guard lock(mutex_);
    futures = limit_;
    place = c10::str("rank ", group.getRank(), ": hook '", name_of_other_, "', bucket ",
                     bucket.getIndex(), ": ");
  }
  auto parse = [hook, place, rank = group.getRank(),
                buffer = bucket.getBuffer()](const c10::IValue& value) {
    try {
      at::Tensor result = hook->parseHookResult(value);
      engine::check_result(result, buffer);
      return result;
    } catch (const std::exception& error) {
      throw HookError(place + base::report_of(error), Failure::other, rank);
    }
  };
  std::string late = c10::str(place, "its future is not complete within the time limit of ",
                              limit.count(), " ms");
  const AtWork at_work(*this);
  return futures->watch(hook->runHook(bucket), std::move(parse), limit + kFutureSlack,
                        std::move(late));
}

bool HookSlot::runs_here() const {
  if (slot_at_work == this) return true;
  const auto current = reduction();
  const auto engine = current ? current->engine() : nullptr;
  return engine && engine::runs_hook_here(*engine);
}

at::Tensor HookSlot::result_of(const c10::IValue& value) {
  // A Python function's result, when no thread watches its futures any more.
  if (!value.isTensor()) return other()->parseHookResult(value);
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
  engine::ReducerHook::Runner runner;
  // The Reducer owns its hook, so outlives it.
  runner.run = [slot, &reducer](c10d::GradBucket& bucket) {
    slot->reducer_hook->drop_at_end_of_backward();
    return slot->run(bucket, reducer);
  };
  runner.result = [slot](const c10::IValue& value) { return slot->result_of(value); };
  runner.runs_here = [weak = std::weak_ptr(slot)] {
    const auto locked = weak.lock();
    return locked && locked->runs_here();
  };
  runner.for_backward = for_backward;
  slot->reducer_hook->attach(reducer, std::move(runner));
}

}  // namespace brigade::python
