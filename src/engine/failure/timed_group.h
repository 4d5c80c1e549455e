// Time limits for a model's collectives outside of hooks: the Reducer's own, and those
// between two passes.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "brigade/process_group.h"
#include "engine/failure/deadline_thread.h"
#include "engine/failure/failure_store.h"
#include "torch_port/live_works.h"

namespace brigade::engine {

// A c10d group over the connections of another one. Its broadcasts, all-reduces and
// all-gathers of CPU tensors fail as a hook's buckets do: within the group's time limit and
// a second or two, on all ranks with the first cause, which names the missing ranks, as
// PeerLostError, TimeoutError, or another type of ours. It adds a future to each collective
// and copies no memory.
class TimedGroup {
 public:
  // Collective, because it makes a unique name. Returns null with one rank; over NCCL,
  // where the host does not wait for collectives; and in an elastic job, which ends waiting
  // itself.
  static std::unique_ptr<TimedGroup> make(const ProcessGroup& group);
  // Fails all collectives under way, and all later ones.
  ~TimedGroup();
  TimedGroup(const TimedGroup&) = delete;
  TimedGroup& operator=(const TimedGroup&) = delete;

  // The c10d group may outlive this object.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return c10d_; }
  // From now on errors name the next step; the first one is 0.
  void begin_step();

  struct InFlight;

 private:
  explicit TimedGroup(const ProcessGroup& group);
  std::optional<DeadlineThread::Watched> oldest();
  base::Cause cause_of(const std::exception_ptr& error);
  void fail_all(const base::Cause& why);

  const ProcessGroup group_;
  const std::shared_ptr<InFlight> in_flight_;
  const c10::intrusive_ptr<c10d::ProcessGroup> c10d_;
  FailureStore failures_;
  DeadlineThread deadlines_;
};

// The collectives under way in a TimedGroup, and their start times. Shared with the
// callbacks of collectives, which run on threads of the group and may be the last owners,
// so it holds no group. Thread-safe.
struct TimedGroup::InFlight {
  using Clock = DeadlineThread::Clock;
  struct UnderWay {
    Clock::time_point issued;
    int64_t step;
    c10::intrusive_ptr<torch_port::LiveWork> work;
    std::exception_ptr error = {};  // it has failed; the DeadlineThread reports it
  };
  struct Oldest {
    Clock::time_point started;
    int64_t step;
    c10d::OpType type;
    std::exception_ptr error;
  };

  std::mutex mutex;
  uint64_t next = 0;
  std::map<uint64_t, UnderWay> under_way;
  Clock::time_point last_end{};
  int64_t step = -1;
  std::exception_ptr failure;
  std::function<void()> wake;  // wakes the DeadlineThread; empty once that has ended

  // After a failure no collective may be issued, because ranks would pair them wrongly.
  void throw_if_failed() {
    std::lock_guard lock(mutex);
    if (failure) std::rethrow_exception(failure);
  }

  // Returns the collective's number.
  uint64_t begin(c10::intrusive_ptr<torch_port::LiveWork> work, Clock::time_point now) {
    std::lock_guard lock(mutex);
    const uint64_t number = next++;
    under_way.emplace(number, UnderWay{now, step, std::move(work)});
    if (number == 0 && wake) wake();
    return number;
  }

  void end(uint64_t number, c10::ivalue::Future& done, Clock::time_point now) {
    c10::intrusive_ptr<torch_port::LiveWork> work;
    {
      std::lock_guard lock(mutex);
      const auto found = under_way.find(number);
      if (found == under_way.end()) return;  // it was aborted
      if (done.hasError() && wake) {
        found->second.error = done.exception_ptr();
        return wake();
      }
      last_end = now;
      work = std::move(found->second.work);
      under_way.erase(found);
    }
    work->end(done.exception_ptr(), done.hasError() ? c10::IValue() : done.value());
  }

  // The oldest that has failed, else the oldest. Gloo runs few at once, so a collective
  // counts as started when the previous one has ended.
  std::optional<Oldest> oldest() {
    std::lock_guard lock(mutex);
    if (under_way.empty()) return std::nullopt;
    auto which = std::ranges::find_if(
        under_way, [](const auto& entry) { return entry.second.error != nullptr; });
    if (which == under_way.end()) which = under_way.begin();
    const UnderWay& one = which->second;
    return Oldest{std::max(one.issued, last_end), one.step, one.work->retrieveOpType(),
                  one.error};
  }
};

}  // namespace brigade::engine
