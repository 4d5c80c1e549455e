#include <deque>
#include <mutex>
#include <utility>

#include "brigade/compose_hooks.h"
#include "engine/comm/lane.h"

namespace brigade {

struct Semaphore::State {
  std::mutex mutex;
  // A lane that takes a permit is ordered, on the device too, after the release.
  std::deque<engine::StreamMark> free;
  std::deque<Acquire::Waiter*> waiting;

  bool take(Acquire::Waiter& waiter);
  void release() noexcept;
};

// Part of the waiting coroutine; destroyed with it at the latest.
struct Semaphore::Acquire::Waiter {
  std::shared_ptr<State> state;
  Comm::Lane& lane;
  // The engine owns a bucket under way. If the semaphore owned it too, it would own its
  // hook, and so itself.
  std::weak_ptr<engine::BucketRun> run = {};
  std::coroutine_handle<> coroutine = {};
  bool has_permit = false;
  engine::StreamMark released = {};
};

bool Semaphore::State::take(Acquire::Waiter& waiter) {
  waiter.has_permit = !free.empty();
  if (!waiter.has_permit) return false;
  waiter.released = std::move(free.front());
  free.pop_front();
  return true;
}

void Semaphore::State::release() noexcept {
  engine::StreamMark here = engine::StreamMark::here_or_error();
  std::shared_ptr<engine::BucketRun> run;
  Acquire::Waiter* first = nullptr;
  {
    std::lock_guard lock(mutex);
    while (!run && !waiting.empty()) {
      first = waiting.front();
      waiting.pop_front();
      run = first->run.lock();  // null: the waiter is being destroyed
    }
    if (!run) {
      free.push_back(std::move(here));
      return;
    }
    first->has_permit = true;
    first->released = std::move(here);
  }
  // Only the station's thread resumes it, so `first` is valid until then.
  run->resume_at(first->lane.station, first->lane.order, first->coroutine);
}

Semaphore::Acquire::Acquire(std::shared_ptr<State> state, Comm& comm)
    : waiter_(new Waiter{std::move(state), Comm::Lane::of(comm)}) {}

// The bucket may have failed while it waited, or after it got a permit.
Semaphore::Acquire::~Acquire() {
  State& state = *waiter_->state;
  {
    std::lock_guard lock(state.mutex);
    std::erase(state.waiting, waiter_.get());
    if (!waiter_->has_permit) return;
  }
  state.release();
}

bool Semaphore::Acquire::await_ready() {
  State& state = *waiter_->state;
  {
    std::lock_guard lock(state.mutex);
    state.take(*waiter_);
  }
  if (!waiter_->has_permit && waiter_->lane.run.engine->runs_inline()) {
    throw Error(
        "a hook would wait for ever: with this backend it runs from beginning to end on "
        "one thread, so what it waits for must be there already");
  }
  return waiter_->has_permit;
}

bool Semaphore::Acquire::await_suspend(std::coroutine_handle<> waiting) {
  State& state = *waiter_->state;
  Comm::Lane& lane = waiter_->lane;
  std::lock_guard lock(state.mutex);
  if (state.take(*waiter_)) return false;
  waiter_->coroutine = waiting;
  waiter_->run = lane.run.weak_from_this();
  lane.run.pipeline->expect_again(lane.station, lane.order);
  state.waiting.push_back(waiter_.get());
  return true;
}

Semaphore::Permit Semaphore::Acquire::await_resume() {
  waiter_->has_permit = false;
  Permit permit(waiter_->state);  // released if the device has failed
  waiter_->released.wait();
  return permit;
}

Semaphore::Permit& Semaphore::Permit::operator=(Permit&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void Semaphore::Permit::release() noexcept {
  if (auto state = std::exchange(state_, nullptr)) state->release();
}

Semaphore::Semaphore(int permits) : state_(std::make_shared<State>()) {
  TORCH_CHECK(permits >= 0, "Semaphore: ", permits, " permits, expected 0 or more");
  state_->free.resize(static_cast<size_t>(permits));
}

void Semaphore::release() noexcept { state_->release(); }

struct Latch::State {
  std::mutex mutex = {};
  int count;
  engine::StreamMark counted = {};  // the mark of the last count_down()
};

Latch::Latch(int count) : state_(new State{.count = count}) {
  TORCH_CHECK(count >= 0, "Latch: the count is ", count, ", expected 0 or more");
  if (count == 0) open_.release();
}

Latch::~Latch() = default;

void Latch::add() {
  std::lock_guard lock(state_->mutex);
  ++state_->count;
}

void Latch::count_down() {
  {
    std::lock_guard lock(state_->mutex);
    // Each mark is ordered behind the previous one, so waiting for the last waits for all.
    state_->counted.wait();
    state_->counted = engine::StreamMark::here();
    if (--state_->count > 0) return;
  }
  open_.release();  // a waiter may destroy the latch
}

Task<void> Latch::wait(Comm& comm) {
  // Released at once, for the next waiter.
  const Semaphore::Permit passed = co_await open_.acquire(comm);
}

}  // namespace brigade
