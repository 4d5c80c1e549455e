// Comm::split: several lanes of one bucket side by side.
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "brigade/hook.h"
#include "engine/bucket_run.h"
#include "engine/comm/lane.h"
#include "engine/engine.h"

namespace brigade {
namespace {

using engine::Order;

// Awaited by the parent. Every lane's first stage runs in turn at the station where the
// parent stands. Behind a lane that waits there for something other than a collective, the
// next ones wait too. The last lane to end sends the parent on, to the furthest station
// that any of them reached, so that it is the same on all ranks.
class Lanes {
 public:
  Lanes(Comm::Lane& parent, int count, const Comm::Body& body)
      : parent_(parent), here_(parent.station), left_(count + 1) {
    Order last = parent.order;
    last.push_back(static_cast<uint32_t>(count));
    std::vector<Order> after = parent.after;
    after.push_back(std::move(last));
    parent.run.pipeline->split(parent.order, parent.station + 1,
                               static_cast<uint32_t>(count));
    for (int index = 0; index < count; ++index) {
      Order order = parent.order;
      order.push_back(static_cast<uint32_t>(index));
      SubLane& part = parts_.emplace_back();
      part.lane = new Comm::Lane{parent.run, std::move(order), parent.station, parent.over,
                                 after,      parent.label};
      part.comm = std::make_unique<Comm>(std::unique_ptr<Comm::Lane>(part.lane));
      part.root = drive(part, index, body).coroutine;
    }
  }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
  ~Lanes() {
    for (SubLane& part : parts_) part.root.destroy();
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> waiting) {
    waiting_ = waiting;
    for (SubLane& part : parts_) {
      if (parent_.run.pipeline->expects_part(here_, parent_.order)) {
        parent_.run.pipeline->expect_again(here_, part.lane->order);
        parent_.run.resume_at(here_, part.lane->order, part.root);
      } else {
        part.root.resume();
      }
    }
    // Until this decrement no lane can be the last, so *this is still here.
    if (--left_ > 0) return true;
    move_parent();
    if (parent_.station == here_) return false;  // no lane awaited anything: go on at once
    hand_over();
    return true;
  }
  void await_resume() {
    for (SubLane& part : parts_) {
      if (part.error) std::rethrow_exception(part.error);
    }
  }

 private:
  struct SubLane {
    Comm::Lane* lane = nullptr;  // comm owns it
    std::unique_ptr<Comm> comm;
    std::coroutine_handle<> root;
    std::exception_ptr error;
  };

  // Tells the parent only once it is suspended for good: the parent may destroy it at once.
  struct LaneRoot {
    struct promise_type {
      promise_type(Lanes& lanes, SubLane& part, int, const Comm::Body&)
          : lanes(lanes), part(part) {}
      LaneRoot get_return_object() {
        return {std::coroutine_handle<promise_type>::from_promise(*this)};
      }
      struct Ended {
        bool await_ready() noexcept { return false; }
        void await_suspend(std::coroutine_handle<promise_type> root) noexcept {
          root.promise().lanes.ended(*root.promise().part.lane);
        }
        void await_resume() noexcept {}
      };
      std::suspend_always initial_suspend() noexcept { return {}; }
      Ended final_suspend() noexcept { return {}; }
      void return_void() noexcept {}
      void unhandled_exception() noexcept { part.error = std::current_exception(); }
      Lanes& lanes;
      SubLane& part;
    };
    std::coroutine_handle<> coroutine;
  };

  LaneRoot drive(SubLane& part, int index, const Comm::Body& body) {
    co_await body(index, *part.comm);
  }

  void ended(Comm::Lane& lane) {
    lane.run.pipeline->pass(lane.order, lane.station + 1);
    if (--left_ > 0) return;
    move_parent();
    hand_over();
  }

  void move_parent() {
    for (const SubLane& part : parts_) {
      parent_.station = std::max(parent_.station, part.lane->station);
    }
    parent_.order.push_back(static_cast<uint32_t>(parts_.size()));
  }
  void hand_over() {
    if (parent_.station == here_) parent_.run.pipeline->expect_again(here_, parent_.order);
    parent_.run.resume_at(parent_.station, parent_.order, waiting_);
  }

  Comm::Lane& parent_;
  const size_t here_;
  std::deque<SubLane> parts_;
  std::atomic<int> left_;
  std::coroutine_handle<> waiting_;
};

// One lane after the other on this thread, all of them, as they run where they are side by
// side. On a device each has its stream, the first one that of the parent, so that their
// work overlaps there; the parent goes on behind all of them, also if one throws.
Task<void> split_inline(Comm::Lane& parent, int count, const Comm::Body& body) {
  std::vector<engine::StreamMark> ends;
  const engine::StreamMark begin = engine::StreamMark::here();
  size_t furthest = parent.station;
  std::exception_ptr error;
  parent.end_stretch_inline();
  for (int index = 0; index < count; ++index) {
    std::optional<c10::StreamGuard> stream;
    if (parent.run.device_lanes && index > 0)
      stream.emplace(parent.run.device_lanes->next_stream());
    begin.wait();
    auto* lane = new Comm::Lane{parent.run,  parent.order, parent.station,
                                parent.over, {},           parent.label};
    Comm comm{std::unique_ptr<Comm::Lane>(lane)};
    lane->order.push_back(static_cast<uint32_t>(index));
    lane->begin_stage_inline();
    try {
      co_await body(index, comm);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    lane->end_stretch_inline();
    furthest = std::max(furthest, lane->station);
    ends.push_back(engine::StreamMark::here());
  }
  for (const engine::StreamMark& end : ends) end.wait();
  parent.station = furthest;
  if (error) std::rethrow_exception(error);
  parent.begin_stage_inline();
}

}  // namespace

Task<void> Comm::split(int count, Body body) {
  TORCH_CHECK(count >= 0, "split: the number of lanes is ", count, ", expected 0 or more");
  if (lane_->run.engine->runs_inline()) {
    co_await split_inline(*lane_, count, body);
    co_return;
  }
  Lanes lanes(*lane_, count, body);
  co_await lanes;
}

}  // namespace brigade
