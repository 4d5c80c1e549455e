// SPDX-License-Identifier: BSD-3-Clause
// For hooks made of other hooks: around one, with a part of a bucket for each of several,
// among some of the ranks, one waiting for another.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- hook wrapper -----------------------------------------------------------------------
//
// Start here to write a hook around another: derive from HookWrapper, and override what is
// different.
//
//   class Scaled : public HookWrapper {
//    public:
//     using HookWrapper::HookWrapper;
//     std::string name() const override { return "scaled+" + inner().name(); }
//     Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
//       bucket.buffer().mul_(0.5);
//       co_return co_await reduce_inner(bucket, comm);
//     }
//   };

// Passes everything on to the inner hook, except name() and reduce(), which each wrapper
// writes itself.
class BRIGADE_API HookWrapper : public Hook {
 public:
  // Throws ConfigError if there is no inner hook.
  explicit HookWrapper(std::shared_ptr<Hook> inner);

  // The wrapper's name and the inner hook's fingerprint. A wrapper whose name does not tell
  // all of its options overrides it, and includes the inner one.
  std::string fingerprint() const override;
  void set_parameters(std::span<const std::string> names) override;
  void begin_pass(const HookPass& pass) override;
  bool takes_sparse() const override;
  HookState state() const override;
  void load_state(const HookState& state) override;
  void reset() override;
  void check_dtype(at::ScalarType dtype) const override;
  std::vector<std::string> history() const override;

 protected:
  Hook& inner() const { return *inner_; }
  // Gives what the inner hook makes of the bucket. If the bucket is sparse and the inner
  // hook does not take such, gives the mean. REQUIRES: the wrapper awaits as often before
  // it for every bucket (Comm::skip where there is nothing to send), so that the inner
  // hook's stages come in the buckets' order on one thread.
  Task<at::Tensor> reduce_inner(Bucket bucket, Comm& comm) const;

  // A result that is still to be multiplied with `scale`.
  struct Undivided {
    at::Tensor result;
    double scale = 1;
  };
  // As reduce_inner, for wrappers that touch every gradient anyway. If the inner hook is
  // the plain mean, returns the undivided sum and a scale. The bits are those of the mean,
  // except at the ends of the number range.
  Task<Undivided> reduce_inner_undivided(Bucket bucket, Comm& comm) const;

 private:
  const std::shared_ptr<Hook> inner_;
};

// Dense buckets of floating-point gradients come to `inner` as `dtype`, and its result is
// cast back in place; others come as they are. Named `before`, the inner name, `after`.
BRIGADE_API std::shared_ptr<Hook> in_dtype(at::ScalarType dtype,
                                           std::shared_ptr<Hook> inner, std::string before,
                                           std::string after);

// ---- revertible hook --------------------------------------------------------------------
//
// For hooks that keep much from step to step: how elastic training takes back a step that
// failed without a copy of all that in each step.
//
// A hook without it is asked for its state() after each step. With it, the hook writes what
// changes into other memory than what it had at the last commit(), so that going back is a
// change of pointers.

// A base class beside Hook.
class BRIGADE_API RevertibleHook {
 public:
  virtual ~RevertibleHook() = default;
  // From now on revert() goes back to the hook's present state. False: it cannot be
  // done, as with a hook around one that is not revertible; state() is used then. Called
  // between steps.
  virtual bool commit() = 0;
  // All that the hook keeps is again as it was at the last commit(), bit for bit. Called
  // when no bucket is under way. REQUIRES: commit() has returned true before.
  virtual void revert() = 0;
};

// For hooks around others: the same for any inner hook. One that is not revertible must not
// keep anything.
inline bool commit_hook(Hook& hook) {
  if (auto* revertible = dynamic_cast<RevertibleHook*>(&hook)) return revertible->commit();
  const HookState state = hook.state();
  return state.tensors.empty() && state.values.empty();
}
inline void revert_hook(Hook& hook) {
  auto* revertible = dynamic_cast<RevertibleHook*>(&hook);
  revertible ? revertible->revert() : hook.reset();
}

// ---- group scope ------------------------------------------------------------------------
//
// A hook's collectives among some of the ranks only.

// While it lives, rank(), size() and the collectives of `comm` are those of `group`, which
// this rank must be in. So any hook can run among fewer ranks:
//
//   GroupScope host(comm, comm.host_group());
//   co_return co_await inner->reduce(bucket, comm);
//
// Different groups of ranks may be at it side by side. Scopes on one Comm must end in the
// reverse order of their beginning.
class BRIGADE_API GroupScope {
 public:
  GroupScope(Comm& comm, ProcessGroup group);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

 private:
  Comm& comm_;
  ProcessGroup before_;
};

// ---- hook parts -------------------------------------------------------------------------
//
// Start here to write a hook that gives parts of a bucket to other hooks:
//
//   Task<at::Tensor> Mine::reduce(Bucket bucket, Comm& comm) {
//     BucketPart matrices(bucket, places_of_matrices(bucket));
//     BucketPart others(bucket, places_of_others(bucket));
//     Comm::Body body = [&](int lane, Comm& own) -> Task<void> {
//       BucketPart& part = lane == 0 ? matrices : others;
//       Hook& hook = lane == 0 ? *coarse_ : *exact_;
//       part.put_back(co_await hook.reduce(part.bucket(), own));
//     };
//     co_await comm.split(2, body);
//     co_return bucket.buffer();
//   }

// Some of a bucket's parameters as a bucket of their own, at the same place in the step.
class BRIGADE_API BucketPart {
 public:
  // `places`: of the parameters in `whole`, ascending. Where their gradients lie side by
  // side, the part is a view of whole's buffer; else they are copied together, into
  // `memory` if that is defined: one dimension, of as many elements, of the buffer's dtype
  // and device. REQUIRES: the bucket is dense.
  BucketPart(Bucket whole, const std::vector<size_t>& places, at::Tensor memory = {});

  const Bucket& bucket() const { return part_; }
  // `result`, of the part's length, becomes the gradients of its parameters in whole's
  // buffer. Does nothing where it is there already.
  void put_back(const at::Tensor& result);

  // Whether the gradients of the parameters at `places` lie side by side.
  static bool is_view(const std::vector<size_t>& places);
  // Elements of the part at `places`.
  static int64_t elements(const Bucket& whole, const std::vector<size_t>& places);

 private:
  at::Tensor in_whole_;                // what the part is a view of; undefined: it is none
  std::vector<at::Tensor> gradients_;  // of the whole, if the part is no view
  Bucket part_;
};

// The places of the buckets that a hook sees, if it does not see all: the first in a step
// has the index 0, and one is the last. To be used before the first co_await.
class BRIGADE_API BucketSequence {
 public:
  // How many parameters will come in a step. If it is not told, that is what came in the
  // step before; in the first step the last of all buckets is the last.
  void expect(int64_t parameters) {
    expected_ = parameters;
    told_ = true;
  }
  // To be called for every bucket of a step, also those that the hook does not see.
  void pass(const Bucket& whole);
  // `seen`, which has been made of the bucket that was last given to pass(), at its place.
  Bucket next(const Bucket& seen);

 private:
  bool told_ = false;
  int64_t expected_ = 0;
  int64_t parameters_ = 0;  // seen in this step
  int64_t buckets_ = 0;
  bool whole_is_last_ = false;
};

// While it lives, what `comm` and lanes split from it send counts under a name of its own
// too: HookStats::parts.
class BRIGADE_API TrafficLabel {
 public:
  // `bytes_before`: of the gradients that this is about.
  TrafficLabel(Comm& comm, std::string name, int64_t bytes_before);
  ~TrafficLabel();
  TrafficLabel(const TrafficLabel&) = delete;
  TrafficLabel& operator=(const TrafficLabel&) = delete;

 private:
  Comm& comm_;
  std::string before_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// The state of a hook that is made of others: `from`, the state of the part number `part`,
// under keys of its own. combine_states() combines each part by itself.
BRIGADE_API void add_part_state(HookState& to, int part, const HookState& from);
BRIGADE_API HookState part_state(const HookState& from, int part);

// ---- semaphore --------------------------------------------------------------------------
//
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
