// Runs a hook over buckets: gives out tickets, owns the line and the process groups of its
// stations, watches deadlines, keeps the first failure, counts.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "brigade/hook.h"
#include "brigade/process_group.h"
#include "engine/line.h"
#include "engine/run.h"
#include "engine/trace.h"

namespace brigade::engine {

// What to do about ranks with different hooks: they would add up each other's bytes as
// garbage, so they find out before the first bucket.
inline constexpr const char* kSameHook =
    "set the same hook, with the same options, on every rank";

// run() is called by one thread at a time, the others by any.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // `name` tells the engines of one group apart in its store: equal on all ranks, different
  // for each engine.
  static std::shared_ptr<Engine> make(ProcessGroup group, std::string name) {
    return std::shared_ptr<Engine>(new Engine(std::move(group), std::move(name)));
  }
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Between steps: throws if a bucket is under way. Steps count from 0 again, and so do the
  // statistics. `agreed`: the ranks are known to have set the same one.
  void set_hook(std::shared_ptr<Hook> hook, bool agreed = false);
  const std::shared_ptr<Hook>& hook() const { return hook_; }

  // Starts the hook on a bucket. The future holds the resulting tensor, or an error that
  // names hook, bucket, step and rank; it is complete within the group's time limit and a
  // second or two. Once something failed, throws that again.
  c10::intrusive_ptr<c10::ivalue::Future> run(Bucket bucket);

  // Fails what is under way and ends the threads. Nothing may be run afterwards.
  void close();
  // Collective until it has succeeded, once a hook: throws MismatchError, on every rank,
  // unless all ranks have hooks of the same fingerprint. run() does it before the first
  // bucket if nobody has.
  void agree();
  void throw_if_failed() const;
  HookStats stats() const;
  const ProcessGroup& group() const { return group_; }
  const std::string& name() const { return name_; }
  bool busy() const;
  Trace& trace() { return trace_; }

  // ---- for Run and Comm
  // True when hooks run through at once on the calling thread: alone, or with NCCL, whose
  // collectives are waited for by streams and not by the host.
  bool runs_through() const { return runs_through_; }
  // The station's own connections among the ranks of `over`, or of the engine's group.
  // Those of another `way`, 0 or 1, are others.
  c10d::ProcessGroup& station_group(size_t station, const ProcessGroup& over = {},
                                    int way = 0);
  void ended(Run& run, std::exception_ptr error);

 private:
  Engine(ProcessGroup group, std::string name);
  std::shared_ptr<Run> admit(Bucket bucket);
  void order_stream(Run& run);
  void settle(const Bucket& bucket);
  void count(Run& run);
  HookTraffic this_step() const;
  void give_up(const std::string& why);
  std::string first_cause(const std::string& mine);
  c10d::Store& board();
  const std::string& identity();
  void watch();
  void look_around();

  const ProcessGroup group_;
  const std::string name_;
  const bool runs_through_;
  const std::shared_ptr<Line> line_ = Line::make();
  std::shared_ptr<Hook> hook_;
  std::optional<c10::Stream> side_stream_;
  Trace trace_;
  // Each made and used by its station's thread alone. By the group it is a duplicate of,
  // which is kept, so that the key stays its own, and by its way.
  struct StationGroup {
    ProcessGroup of, own;
  };
  std::map<std::pair<const c10d::ProcessGroup*, int>, StationGroup>
      station_groups_[kStations];

  mutable std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Run>> outstanding_;
  uint32_t tickets_ = 0;
  int64_t step_ = -1;
  HookTraffic before_this_step_;
  HookTraffic step_cost_;
  std::vector<std::pair<Clock::time_point, Clock::time_point>> reductions_;  // of this step
  Clock::time_point last_launch_;
  bool agreed_ = false;
  std::string failure_;

  // Where a failing rank leaves its cause for the others: a connection of its own, because
  // a client serves one call at a time and the group's may be blocked in a wait.
  std::mutex board_mutex_;
  c10::intrusive_ptr<c10d::Store> board_;
  std::once_flag identity_made_;
  std::string identity_;

  std::thread watcher_;
  std::condition_variable wake_watcher_;
  bool stop_ = false;
  std::thread::id closed_by_;

  // Where each bucket was when it was last seen.
  std::map<int64_t, const void*> memory_;
};

}  // namespace brigade::engine
