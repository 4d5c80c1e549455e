// What is under way in a WatchedGroup, and since when.
#pragma once
#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "engine/failure/watched_group.h"
#include "torch_port/live_works.h"

namespace brigade::engine {

// Shared with the callbacks of collectives, which run on threads of the group and may be
// the last to let go: so it holds no group. Thread-safe.
struct WatchedGroup::Ledger {
  using Clock = Watcher::Clock;
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
