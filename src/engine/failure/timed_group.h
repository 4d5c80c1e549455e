// The collectives of a model that no hook runs: the Reducer's own, and those between two
// passes.
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
// a second or two, on all ranks with the first cause, which says who did not take part: as
// PeerLostError, TimeoutError, or another type of ours.
// What it adds to a collective is a future and a note; no memory is copied.
class TimedGroup {
 public:
  // Nothing where there is nothing to watch: with one rank; over NCCL, whose collectives
  // the host does not wait for; and in an elastic job, which has its own way to end what
  // waits. Collective: it gives out a name.
  static std::unique_ptr<TimedGroup> make(const ProcessGroup& group);
  // Fails what is under way, and all that comes later.
  ~TimedGroup();
  TimedGroup(const TimedGroup&) = delete;
  TimedGroup& operator=(const TimedGroup&) = delete;

  // May outlive this.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return c10d_; }
  // From now on errors speak of the next step; the first one is 0.
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

// What is under way in a TimedGroup, and since when. Shared with the callbacks of
// collectives, which run on threads of the group and may be the last to let go: so it holds
// no group. Thread-safe.
struct TimedGroup::InFlight {
  using Clock = DeadlineThread::Clock;
  struct UnderWay {
    Clock::time_point issued;
    int64_t step;
    c10::intrusive_ptr<torch_port::LiveWork> work;
    std::exception_ptr error = {};  // it has failed; the watcher is to say so
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
  std::function<void()> wake;  // the watcher; empty once it has ended

  // After a failure no collective may be issued: it would pair wrongly.
  void throw_if_failed() {
    std::lock_guard lock(mutex);
    if (failure) std::rethrow_exception(failure);
  }

  // Gives its number.
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
      if (found == under_way.end()) return;  // it was given up
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

  // The oldest that has failed, or else the oldest. Gloo runs few at once, so one counts as
  // started when the one before it has ended.
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
