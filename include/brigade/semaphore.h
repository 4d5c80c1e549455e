// SPDX-License-Identifier: BSD-3-Clause
// What hooks wait for besides collectives. A hook must not block its thread, which serves
// other buckets too; it awaits these instead.
//
//   Semaphore memory(2);                                  // for two buckets at a time
//   …
//   Semaphore::Permit permit = co_await memory.acquire(comm);
//
// Where a lane has to wait it keeps its place: no later bucket overtakes it, so all ranks
// still issue their collectives in the same order. It counts against the bucket's time
// limit; a bucket that fails meanwhile gives up its place. What a bucket waits for must
// come from elsewhere or from an earlier bucket.
//
// With NCCL, and alone, a hook runs from beginning to end on one thread, and nobody could
// release what it waits for: there a wait that can't end at once throws Error.
#pragma once
#include <coroutine>
#include <memory>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// A number of permits. Thread-safe. Permits may outlive it.
class BRIGADE_API Semaphore {
  struct State;

 public:
  // What its owner may do until it ends, or is released. Empty once moved from.
  class Permit {
   public:
    Permit(Permit&&) noexcept = default;
    Permit& operator=(Permit&& other) noexcept;
    ~Permit() { release(); }
    void release() noexcept;

   private:
    friend class Semaphore;
    explicit Permit(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  // Awaited, gives a Permit.
  class [[nodiscard]] Acquire {
   public:
    ~Acquire();
    Acquire(const Acquire&) = delete;
    Acquire& operator=(const Acquire&) = delete;
    bool await_ready();
    bool await_suspend(std::coroutine_handle<> waiting);
    Permit await_resume();

   private:
    friend class Semaphore;
    struct Waiter;
    Acquire(std::shared_ptr<State> state, Comm& comm);
    std::unique_ptr<Waiter> waiter_;
  };

  explicit Semaphore(int permits);
  // Those who wait get permits in the order in which they came. Await it at once.
  Acquire acquire(Comm& comm) { return Acquire(state_, comm); }
  // One permit more than there were. May be called by any thread, in a hook or elsewhere.
  void release() noexcept;

 private:
  std::shared_ptr<State> state_;
};

// Opens, for good, when it has been counted down to zero. Thread-safe. For a bucket that
// must wait until the others are done, for instance.
class BRIGADE_API Latch {
 public:
  explicit Latch(int count);
  ~Latch();
  // One more to count down. REQUIRES: the latch is not open.
  void add();
  void count_down();
  // Ends when the latch is open. The latch must live until then.
  Task<void> wait(Comm& comm);

 private:
  struct State;
  std::unique_ptr<State> state_;
  Semaphore open_{0};
};

}  // namespace brigade
