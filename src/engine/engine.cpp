#include "engine/engine.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <random>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/exception_text.h"
#include "base/huge_pages.h"
#include "engine/average.h"

namespace brigade::engine {
namespace {

using std::chrono::milliseconds;

// How often the watcher looks, how long a bucket may take before it asks the other ranks,
// and how much longer than the group's time limit: gloo's own error, at that limit, says
// more.
constexpr milliseconds kLook{250};
constexpr milliseconds kPatience{500};
constexpr milliseconds kSlack{1000};
// How long close() waits for a hook that computes.
constexpr milliseconds kGrace{2000};

constexpr const char* kFailureKey = "failure";

void add(HookTraffic& sum, const HookTraffic& part) {
  sum.steps += part.steps;
  sum.bytes_before += part.bytes_before;
  sum.bytes_sent += part.bytes_sent;
  sum.collectives += part.collectives;
  sum.encode_seconds += part.encode_seconds;
  sum.wait_seconds += part.wait_seconds;
  sum.decode_seconds += part.decode_seconds;
  sum.reduce_seconds += part.reduce_seconds;
  sum.hidden_seconds += part.hidden_seconds;
}

}  // namespace

Engine::Engine(ProcessGroup group, std::string name)
    : group_(std::move(group)),
      name_(std::move(name)),
      runs_through_(group_.size() == 1 || group_.backend() == "nccl") {}

Engine::~Engine() {
  const bool closed_here = closed_by_ == std::this_thread::get_id();
  close();
  if (closed_here) return;
  // The last to let go may be the callback of a collective, on a thread of one of these
  // groups, which can't join itself.
  std::vector<StationGroup> groups;
  for (auto& station : station_groups_) {
    for (auto& [of, group] : station) groups.push_back(std::move(group));
    station.clear();
  }
  std::thread([groups = std::move(groups)]() mutable { groups.clear(); }).detach();
}

void Engine::close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
    closed_by_ = std::this_thread::get_id();
  }
  wake_watcher_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  line_->stop(kGrace);
  give_up("the model was destroyed while its gradients were being reduced");
}

void Engine::set_hook(std::shared_ptr<Hook> hook, bool agreed) {
  throw_if_failed();
  if (busy())
    throw Error("set_hook: a backward pass is under way; set it between iterations");
  std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
  step_ = -1;
  agreed_ = agreed;
  before_this_step_ = step_cost_ = {};
  reductions_.clear();
}

void Engine::agree() {
  if (agreed_) return;
  group_.agree_on("hooks", hook_->fingerprint(), kSameHook);
  agreed_ = true;
}

bool Engine::busy() const {
  std::lock_guard lock(mutex_);
  return !outstanding_.empty();
}

void Engine::throw_if_failed() const {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw HookError(failure_);
}

c10d::ProcessGroup& Engine::station_group(size_t station, const ProcessGroup& over,
                                          int way) {
  throw_if_failed();  // after a failure no collective may be issued: it would pair wrongly
  const ProcessGroup& base = over ? over : group_;
  if (runs_through_) return *base.c10d();
  StationGroup& group = station_groups_[station][{base.c10d().get(), way}];
  if (!group.own) {
    const std::string whose = over ? identity() : name_;
    const std::string name = whose + "/station" + std::to_string(station);
    group = {base, base.duplicate(way == 0 ? name : name + "/odd")};
  }
  return *group.own.c10d();
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::run(Bucket bucket) {
  throw_if_failed();
  agree();
  settle(bucket);
  std::shared_ptr<Run> run = admit(std::move(bucket));
  order_stream(*run);
  if (runs_through_) {
    run->resume(run->first_stretch(), 0, {run->ticket});
  } else {
    line_->open({run->ticket});
    line_->arrive(0, {run->ticket}, {run, run->first_stretch()});
  }
  return run->future;
}

std::shared_ptr<Run> Engine::admit(Bucket bucket) {
  static const std::shared_ptr<Hook> sparse =
      make_hook("allreduce of a sparse bucket", average);
  std::lock_guard lock(mutex_);
  if (bucket.index() == 0) {
    add(before_this_step_, this_step());
    step_cost_ = {};
    step_cost_.steps = 1;
    reductions_.clear();
    ++step_;
  }
  if (!runs_through_ && !watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  const bool as_it_is = bucket.buffer().is_sparse() && !hook_->takes_sparse();
  std::shared_ptr<Hook> hook = as_it_is ? sparse : hook_;
  auto run = std::make_shared<Run>(shared_from_this(), line_, std::move(hook),
                                   std::move(bucket), tickets_++, step_);
  last_launch_ = run->started;
  outstanding_.emplace(run->ticket, run);
  return run;
}

// Buckets are allocated once, and again when the Reducer rebuilds them.
void Engine::settle(const Bucket& bucket) {
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

void Engine::order_stream(Run& run) {
  const c10::Device device = run.bucket.buffer().device();
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!side_stream_)
    side_stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  c10::Event made(device.type());
  made.record(guard.getStream(device));
  made.block(*side_stream_);
  run.stream = side_stream_;
}

void Engine::ended(Run& run, std::exception_ptr error) {
  if (error) {
    give_up(first_cause("rank " + std::to_string(group_.rank()) + ": " + run.describe() +
                        ": " + base::text_of(error)));
    return;
  }
  std::lock_guard lock(mutex_);
  count(run);
  outstanding_.erase(run.ticket);
}

void Engine::count(Run& run) {
  const auto now = Clock::now();
  HookTraffic cost;
  {
    std::lock_guard lock(run.counting);
    cost = run.cost;
    const double last_stretch =
        std::chrono::duration<double>(now - run.stretch_began).count();
    if (runs_through_) {  // one stretch in all
      cost.encode_seconds = last_stretch - cost.wait_seconds;
    } else {
      cost.decode_seconds = last_stretch;
    }
  }
  cost.bytes_before = run.bytes;
  reductions_.emplace_back(run.started, now);
  add(step_cost_, cost);
}

HookTraffic Engine::this_step() const {
  HookTraffic traffic = step_cost_;
  for (const auto& [begin, end] : reductions_) {
    const auto seconds = [&](Clock::time_point until) {
      return std::max(0.0, std::chrono::duration<double>(until - begin).count());
    };
    traffic.reduce_seconds += seconds(end);
    traffic.hidden_seconds += seconds(std::min(end, last_launch_));
  }
  return traffic;
}

HookStats Engine::stats() const {
  std::lock_guard lock(mutex_);
  HookStats stats{this_step(), before_this_step_};
  add(stats.total, stats.last_step);
  return stats;
}

void Engine::give_up(const std::string& why) {
  std::map<uint32_t, std::shared_ptr<Run>> lost;
  std::string cause;
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    cause = failure_;
    lost.swap(outstanding_);
  }
  for (auto& [ticket, run] : lost) run->fail(std::make_exception_ptr(HookError(cause)));
}

c10d::Store& Engine::board() {
  std::lock_guard lock(board_mutex_);
  if (!board_) board_ = group_.store()->clone();
  return *board_;
}

// Engines of different groups may have one name, and use one group beside their own: there
// a name must say more. The first rank to ask draws one for all.
const std::string& Engine::identity() {
  std::call_once(identity_made_, [this] {
    std::random_device random;
    const std::string mine =
        name_ + "-" + std::to_string(random()) + "-" + std::to_string(random());
    identity_ = board().compareSet(name_ + "/identity", std::string(), mine);
  });
  return identity_;
}

// The first rank to fail writes its cause; everyone shows that one, not the echo it caused.
std::string Engine::first_cause(const std::string& mine) {
  if (group_.size() == 1) return mine;
  try {
    return board().compareSet(name_ + "/" + kFailureKey, std::string(), mine);
  } catch (const std::exception&) {
    return mine;  // the store is gone as well
  }
}

void Engine::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_watcher_.wait_for(lock, kLook, [&] { return stop_; });
    if (stop_ || outstanding_.empty()) continue;
    lock.unlock();
    look_around();
    lock.lock();
  }
}

void Engine::look_around() {
  std::shared_ptr<Run> oldest;
  {
    std::lock_guard lock(mutex_);
    if (outstanding_.empty()) return;
    oldest = outstanding_.begin()->second;
  }
  const auto age = Clock::now() - oldest->started;
  if (age > group_.timeout() + kSlack) {
    give_up(first_cause("rank " + std::to_string(group_.rank()) + ": " +
                        oldest->describe() + ": not complete within the time limit of " +
                        std::to_string(group_.timeout().count()) + " ms"));
  } else if (age > kPatience) {
    try {
      const std::string key = name_ + "/" + kFailureKey;
      if (board().check({key})) give_up(board().get_to_str(key));
    } catch (const std::exception&) {
      // No store to ask: the collectives themselves will fail.
    }
  }
}

}  // namespace brigade::engine
