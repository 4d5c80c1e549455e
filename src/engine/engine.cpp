#include "engine/engine.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/exception_text.h"
#include "base/huge_pages.h"
#include "engine/failure/failure_store.h"
#include "group/abort_switch.h"
#include "torch_port/nccl_backend.h"

namespace brigade::engine {
namespace {

// How long close() waits for a hook that computes.
constexpr std::chrono::milliseconds kGrace{2000};

// With NCCL, stations behind the last of these share one: a communicator takes memory of
// the device.
constexpr size_t kCommunicators = 3;

// A group created outside this library may not be duplicable; then one communicator is
// used.
size_t count_communicators(const ProcessGroup& group) {
  const bool can_make = group.works_on_device() && !torch_port::why_no_nccl();
  return can_make ? kCommunicators : 1;
}

}  // namespace

Engine::Engine(ProcessGroup group, std::string name)
    : group_(std::move(group)),
      name_(std::move(name)),
      runs_inline_(group_.size() == 1 || group_.works_on_device()),
      communicators_(count_communicators(group_)),
      station_groups_(group_),
      failure_store_(group_, name_),
      deadlines_(
          group_, failure_store_, [this] { return oldest(); },
          [this](const base::Cause& why) {
            fail_all(why);
            // Otherwise the device, and the host after it, would go on waiting.
            if (group_.works_on_device() && !aborted_.exchange(true))
              group::abort_on_device(groups_on_device());
          }) {}

Engine::~Engine() {
  const bool closed_here = closed_by_ == std::this_thread::get_id();
  close();
  if (closed_here) station_groups_.clear();
}

void Engine::close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    closed_by_ = std::this_thread::get_id();
  }
  deadlines_.stop();
  pipeline_->stop(kGrace);
  fail_all({.text = "the model was destroyed while its gradients were being reduced"});
}

void Engine::set_hook(std::shared_ptr<Hook> hook, bool agreed) {
  throw_if_failed();
  if (busy())
    throw Error("set_hook: a backward pass is under way; set it between iterations");
  std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
  step_ = -1;
  agreed_ = agreed;
  stats_.reset();
  shape_.clear();
}

void Engine::check_same() {
  if (agreed_) return;
  group_.check_same("hooks", hook_->fingerprint(), kSameHook);
  agreed_ = true;
}

bool Engine::busy() const {
  std::lock_guard lock(mutex_);
  return !outstanding_.empty();
}

void Engine::throw_if_failed() const {
  std::lock_guard lock(mutex_);
  if (failure_) throw HookError(*failure_);
}

void Engine::throw_if_any_rank_failed() {
  throw_if_failed();
  const auto cause = failure_store_.find();
  if (!cause) return;
  fail_all(*cause);
  throw_if_failed();
}

c10d::ProcessGroup& Engine::station_group(size_t station, const ProcessGroup& over,
                                          int channel) {
  throw_if_failed();  // after a failure no collective may be issued: it would pair wrongly
  const ProcessGroup& base = over ? over : group_;
  if (runs_inline_) {
    const size_t communicator = std::min(station, communicators_ - 1);
    if (communicator == 0 || base.size() == 1) return *base.c10d();
    return station_groups_.get(communicator, base, 0, name_in(over));
  }
  return station_groups_.get(station, base, channel, name_in(over));
}

// Engines of different groups may have the same name, and may use a common group beside
// their own: there the name needs a prefix.
std::string Engine::name_in(const ProcessGroup& over) {
  return over ? failure_store_.identity() : name_;
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::run(Bucket bucket) {
  throw_if_failed();
  check_same();
  refuse_capture(bucket);
  advise_huge_pages(bucket);
  std::shared_ptr<BucketRun> run = admit(std::move(bucket));
  try {
    order_stream(*run);
    if (runs_inline_) {
      run->resume(run->first_stretch(), 0, {run->ticket});
    } else {
      pipeline_->open({run->ticket});
      run->resume_at(0, {run->ticket}, run->first_stretch());
    }
  } catch (...) {
    // The bucket is under way: its future gets the error, and the other ranks are notified.
    ended(*run, std::current_exception());
  }
  return run->future;
}

std::shared_ptr<BucketRun> Engine::admit(Bucket bucket) {
  static const std::shared_ptr<Hook> sparse =
      make_hook("allreduce of a sparse bucket", average);
  std::lock_guard lock(mutex_);
  if (bucket.index() == 0) {
    stats_.begin_step();
    ++step_;
  }
  if (group_.size() > 1) deadlines_.start();
  const bool as_it_is = bucket.buffer().is_sparse() && !hook_->takes_sparse();
  std::shared_ptr<Hook> hook = as_it_is ? sparse : hook_;
  auto run = std::make_shared<BucketRun>(shared_from_this(), pipeline_, std::move(hook),
                                         std::move(bucket), tickets_++, step_);
  stats_.started(run->started);
  outstanding_.emplace(run->ticket, run);
  return run;
}

// Buckets are allocated once, and again when the Reducer rebuilds them.
void Engine::advise_huge_pages(const Bucket& bucket) {
  const at::Tensor& buffer = bucket.buffer();
  if (!buffer.is_cpu() || buffer.is_sparse()) return;
  {
    std::lock_guard lock(mutex_);
    const void*& seen = memory_[bucket.index()];
    if (seen == buffer.const_data_ptr()) return;
    seen = buffer.const_data_ptr();
  }
  base::advise_huge_pages(buffer);
}

void Engine::refuse_capture(const Bucket& bucket) const {
  if (!bucket.buffer().is_cuda() || !torch_port::is_capturing()) return;
  throw Error("hook '" + hook_->name() +
              "': the backward pass is being recorded as a CUDA graph; a hook decides on "
              "the host what to send: keep backward() out of the graph");
}

void Engine::order_stream(BucketRun& run) {
  const c10::Device device = run.bucket.buffer().device();
  if (device.is_cpu()) return;
  if (!device_lanes_) device_lanes_.emplace(device);
  // Over Gloo stations are threads, and one stream is enough for the device's little work
  // besides copies to the host and back.
  if (run.bucket.index() == 0 || !runs_inline_) device_lanes_->begin_step();
  if (runs_inline_) run.device_lanes = &*device_lanes_;
  run.stream = device_lanes_->next_stream();
  c10::Event made(device.type());
  made.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  made.block(*run.stream);
}

void Engine::ended(BucketRun& run, std::exception_ptr error) {
  if (error) {
    {
      // It may have failed after it was removed.
      std::lock_guard lock(mutex_);
      outstanding_.emplace(run.ticket, run.shared_from_this());
    }
    base::Cause cause = cause_of(error);
    cause.text = "rank " + std::to_string(group_.number_in_job(group_.rank())) + ": " +
                 run.describe() + ": " + cause.text;
    fail_all(failure_store_.first_cause(cause));
    return;
  }
  if (run.device_lanes && group_.size() > 1)
    device_work_.add(*run.stream, {run.bucket.index(), run.step});
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  stats_.ended(run.cost, run.started, now, runs_inline_);
  outstanding_.erase(run.ticket);
}

// An exception of the hook itself is this rank's failure; for one of LibTorch's connections
// the rank is not known.
base::Cause Engine::cause_of(const std::exception_ptr& error) {
  base::Cause cause = base::failure_of(error);
  explain(cause, failure_store_);
  bool own = cause.kind == Failure::other || cause.kind == Failure::config ||
             cause.kind == Failure::mismatch;
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError&) {
    own = false;
  } catch (...) {
  }
  if (own && !cause.rank) cause.rank = group_.number_in_job(group_.rank());
  return cause;
}

ProcessGroup Engine::host_group(const ProcessGroup& over) {
  return host_groups_.host_ranks(over ? over : group_, name_in(over));
}

ProcessGroup Engine::peer_group(const ProcessGroup& over) {
  const ProcessGroup& base = over ? over : group_;
  {
    std::lock_guard lock(mutex_);
    if (shape_.empty()) shape_ = base.layout().text();
  }
  return host_groups_.cross_host_ranks(base, name_in(over));
}

HookStats Engine::stats() const {
  std::lock_guard lock(mutex_);
  HookStats stats = stats_.stats();
  if (!shape_.empty()) stats.shape = shape_;
  if (hook_) stats.history = hook_->history();
  return stats;
}

Engine::Waiting::Waiting(Engine& engine) : engine_(engine) {
  std::lock_guard lock(engine.mutex_);
  engine.waiting_since_ = Clock::now();
  if (engine.group_.size() > 1) engine.deadlines_.start();
}

Engine::Waiting::~Waiting() {
  std::lock_guard lock(engine_.mutex_);
  engine_.waiting_since_.reset();
}

std::optional<DeadlineThread::Watched> Engine::oldest() {
  if (group_.works_on_device() && !aborted_) {
    if (auto found = oldest_on_device()) return found;
  }
  std::shared_ptr<BucketRun> run;
  {
    std::lock_guard lock(mutex_);
    if (waiting_since_)
      return DeadlineThread::Watched{*waiting_since_, "before the first bucket"};
    if (outstanding_.empty()) return std::nullopt;
    run = outstanding_.begin()->second;
  }
  return DeadlineThread::Watched{run->started, run->describe()};
}

std::optional<DeadlineThread::Watched> Engine::oldest_on_device() {
  std::optional<DeviceWork::Oldest> found;
  std::optional<base::Cause> error;
  try {
    found = device_work_.oldest();
  } catch (const std::exception& failure) {
    error = base::Cause{.rank = group_.number_in_job(group_.rank()),
                        .text = base::cause_of(failure)};
  }
  if (!error) error = error_of_nccl();
  if (!found && !error) return std::nullopt;
  const DeviceWork::Oldest oldest =
      found.value_or(DeviceWork::Oldest{device_work_.last(), Clock::now()});
  std::lock_guard lock(mutex_);
  return DeadlineThread::Watched{
      oldest.started, describe_bucket(*hook_, oldest.bucket.index, oldest.bucket.step),
      error};
}

std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> Engine::groups_on_device() {
  std::vector<ProcessGroup> groups = station_groups_.all();
  for (ProcessGroup& group : host_groups_.all()) groups.push_back(std::move(group));
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> found;
  for (const ProcessGroup& group : groups)
    if (group.works_on_device()) found.push_back(group.c10d());
  return found;
}

std::optional<base::Cause> Engine::error_of_nccl() {
  for (const auto& group : groups_on_device()) {
    const auto backend = group->getBackend(c10::DeviceType::CUDA);
    if (auto error = torch_port::error_of_nccl(*backend)) return error;
  }
  return std::nullopt;
}

void Engine::fail_all(const base::Cause& why) {
  std::map<uint32_t, std::shared_ptr<BucketRun>> lost;
  std::optional<HookError> error;
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_.emplace(why.text, why.kind, why.rank);
    error = failure_;
    lost.swap(outstanding_);
  }
  for (auto& [ticket, run] : lost)
    run->fail(make_error_ ? make_error_(*error) : std::make_exception_ptr(*error));
}

}  // namespace brigade::engine
