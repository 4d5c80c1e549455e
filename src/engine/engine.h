// The engine runs a hook over buckets: it gives out tickets, passes the buckets to the
// pipeline, and keeps the first failure.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "brigade/hook.h"
#include "brigade/process_group.h"
#include "engine/bucket_run.h"
#include "engine/comm/device_lanes.h"
#include "engine/comm/groups.h"
#include "engine/failure/deadline_thread.h"
#include "engine/failure/device_work.h"
#include "engine/failure/failure_store.h"
#include "engine/pipeline.h"
#include "engine/step_stats.h"
#include "engine/trace.h"

namespace brigade::engine {

// The remedy for ranks with different hooks. They would misread each other's bytes, so
// hooks are compared before the first bucket.
inline constexpr const char* kSameHook =
    "set the same hook, with the same options, on every rank";

// One thread at a time may call run(); any thread may call the other functions.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // `name` is the engine's name in the group's store: equal on all ranks, different for
  // each engine of a group.
  static std::shared_ptr<Engine> make(ProcessGroup group, std::string name) {
    return std::shared_ptr<Engine>(new Engine(std::move(group), std::move(name)));
  }
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Between steps: throws if a bucket is under way. Steps and statistics start from 0
  // again. `agreed`: the ranks are known to have set the same hook.
  void set_hook(std::shared_ptr<Hook> hook, bool agreed = false);
  const std::shared_ptr<Hook>& hook() const { return hook_; }

  // Starts the hook on a bucket. The future holds the resulting tensor, or an error that
  // names hook, bucket, step and rank; it is complete within the group's time limit and a
  // second or two. After a failure, throws the same error again.
  c10::intrusive_ptr<c10::ivalue::Future> run(Bucket bucket);

  // Sets the error of failed buckets' futures; the default is HookError. `make` is called
  // on any thread. To be called before the first run().
  using MakeError = std::function<std::exception_ptr(const HookError& error)>;
  void set_error(MakeError make) { make_error_ = std::move(make); }

  // While it lives, this rank beats (FailureStore::beat) as if a bucket were under way: for
  // waiting in a backward pass before its first bucket.
  class Waiting {
   public:
    explicit Waiting(Engine& engine);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
  };

  // The other ranks that beat now, because they have waited in a backward pass for some
  // time. Listens for most of a second.
  std::vector<int> ranks_in_backward() { return failure_store_.beating_ranks(); }
  // Fails all ranks that run a bucket of this engine, with the first cause.
  void fail(const base::Cause& cause) { fail_all(failure_store_.first_cause(cause)); }

  // Fails all buckets under way and ends the threads. run() must not be called afterwards.
  void close();
  // Collective until it has succeeded, once a hook: throws MismatchError, on every rank,
  // unless all ranks' hooks have the same fingerprint. run() calls it before the first
  // bucket if needed.
  void check_same();
  void throw_if_failed() const;
  // Also asks the store.
  void throw_if_any_rank_failed();
  HookStats stats() const;
  const ProcessGroup& group() const { return group_; }
  const std::string& name() const { return name_; }
  bool busy() const;
  Trace& trace() { return trace_; }

  // ---- for BucketRun and Comm
  // True if hooks run from beginning to end on the calling thread: in a group of one, or
  // with NCCL, where streams wait for collectives and the host does not.
  bool runs_inline() const { return runs_inline_; }
  // The station's own connections among the ranks of `over` or, if that is empty, of the
  // engine's group. Channels 0 and 1 are separate connections.
  c10d::ProcessGroup& station_group(size_t station, const ProcessGroup& over = {},
                                    int channel = 0);
  // The ranks of this host, and the ranks with this rank's place, in `over` or, if that is
  // empty, in the engine's group. The first call is collective among them.
  ProcessGroup host_group(const ProcessGroup& over);
  ProcessGroup peer_group(const ProcessGroup& over);
  void ended(BucketRun& run, std::exception_ptr error);

 private:
  Engine(ProcessGroup group, std::string name);
  void refuse_capture(const Bucket& bucket) const;
  std::shared_ptr<BucketRun> admit(Bucket bucket);
  void order_stream(BucketRun& run);
  void advise_huge_pages(const Bucket& bucket);
  // The engine's name in the store of `over`.
  std::string name_in(const ProcessGroup& over);
  std::optional<DeadlineThread::Watched> oldest();
  std::optional<DeadlineThread::Watched> oldest_on_device();
  // The present groups with NCCL communicators.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_on_device();
  std::optional<base::Cause> error_of_nccl();
  base::Cause cause_of(const std::exception_ptr& error);
  void fail_all(const base::Cause& why);

  const ProcessGroup group_;
  const std::string name_;
  const bool runs_inline_;
  const size_t communicators_;  // stations that have one of their own, with NCCL
  MakeError make_error_;
  const std::shared_ptr<Pipeline> pipeline_ = Pipeline::make();
  std::shared_ptr<Hook> hook_;
  std::optional<DeviceLanes> device_lanes_;  // made by the first bucket on a device
  Trace trace_;
  StationGroups station_groups_;
  HostGroups host_groups_;
  FailureStore failure_store_;
  DeviceWork device_work_;
  std::atomic<bool> aborted_ = false;  // whether work on the device was aborted
  DeadlineThread deadlines_;

  mutable std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<BucketRun>> outstanding_;
  uint32_t tickets_ = 0;
  int64_t step_ = -1;
  StepStats stats_;
  std::string shape_;  // the present hook's; empty: flat
  bool agreed_ = false;
  std::optional<HookError> failure_;
  std::optional<Clock::time_point> waiting_since_;
  bool closed_ = false;
  std::thread::id closed_by_;
  // Each bucket's memory in its last run.
  std::map<int64_t, const void*> memory_;
};

}  // namespace brigade::engine
