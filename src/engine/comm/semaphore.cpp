#include <deque>
#include <mutex>
#include <utility>

#include "brigade/compose_hooks.h"
#include "engine/comm/lane.h"

namespace brigade {

struct Semaphore::State {
  std::mutex mutex;
  // The taker of a permit goes on, on the device too, behind the one who gave it back.
  std::deque<engine::StreamMark> free;
  std::deque<Acquire::Waiter*> waiting;

  bool take(Acquire::Waiter& waiter);
  void release() noexcept;
};

// Part of the coroutine that waits; ends with it at the latest.
struct Semaphore::Acquire::Waiter {
  std::shared_ptr<State> state;
  Comm::Lane& lane;
  // The engine keeps a bucket that is under way. A semaphore that kept it too would keep
  // its own hook, and so itself.
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
      run = first->run.lock();  // null: it is on its way out of here
    }
    if (!run) {
      free.push_back(std::move(here));
      return;
    }
    first->has_permit = true;
    first->released = std::move(here);
  }
  // Its station's thread resumes it, so until then it stays as it is.
  run->resume_at(first->lane.station, first->lane.order, first->coroutine);
}

Semaphore::Acquire::Acquire(std::shared_ptr<State> state, Comm& comm)
    : waiter_(new Waiter{std::move(state), Comm::Lane::of(comm)}) {}

// Of a bucket that failed while it waited, or that got a permit and failed before it could
// go on.
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
  Permit permit(waiter_->state);  // given back if the device has failed
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
  engine::StreamMark counted = {};  // where the last who counted down stood
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
  open_.release();  // who waits may end the latch
}

Task<void> Latch::wait(Comm& comm) {
  // Released at once, for the next who waits.
  const Semaphore::Permit passed = co_await open_.acquire(comm);
}

}  // namespace brigade
