// SPDX-License-Identifier: BSD-3-Clause
// For hooks made of other hooks: wrappers around one hook, parts of a bucket for several
// hooks, collectives among some of the ranks, and buckets that wait for each other.
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

// ---- Hook wrappers ----------------------------------------------------------------------
//
// Start here to write a hook around another: derive from HookWrapper, and override what
// differs.
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

  // The wrapper's name and the inner hook's fingerprint. If a wrapper's name does not
  // contain all of its options, the wrapper overrides this, and includes the inner
  // fingerprint.
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
  // Returns the inner hook's result for the bucket; the mean, if the bucket is sparse and
  // the inner hook does not take sparse ones. REQUIRES: for every bucket the wrapper awaits
  // equally often before this (Comm::skip where there is nothing to send), so that the
  // inner hook's stages run in the buckets' order on one thread.
  Task<at::Tensor> reduce_inner(Bucket bucket, Comm& comm) const;

  // The final result is `result` times `scale`.
  struct Undivided {
    at::Tensor result;
    double scale = 1;
  };
  // As reduce_inner, for wrappers that touch every gradient anyway. If the inner hook is
  // the plain mean, returns the undivided sum and a scale. The bits equal the mean's,
  // except at the ends of the number range.
  Task<Undivided> reduce_inner_undivided(Bucket bucket, Comm& comm) const;

 private:
  const std::shared_ptr<Hook> inner_;
};

// Casts dense buckets of floating-point gradients to `dtype` for `inner`, and its result
// back in place; other buckets stay as they are. The hook's name is `before`, the inner
// name, `after`.
BRIGADE_API std::shared_ptr<Hook> in_dtype(at::ScalarType dtype,
                                           std::shared_ptr<Hook> inner, std::string before,
                                           std::string after);

// ---- Revertible hooks -------------------------------------------------------------------
//
// For hooks with much state: elastic training reverts a step that failed without a copy of
// that state in each step.
//
// Any other hook is asked for its state() after each step. A revertible one writes changes
// into other memory than the state at the last commit(), so that reverting swaps pointers.

// A base class beside Hook.
class BRIGADE_API RevertibleHook {
 public:
  virtual ~RevertibleHook() = default;
  // From now on revert() goes back to the hook's present state. False: it cannot, as with a
  // hook around one that is not revertible; then state() is used. Called between steps.
  virtual bool commit() = 0;
  // Restores the hook's state as it was at the last commit(), bit for bit. Called when no
  // bucket is under way. REQUIRES: commit() has returned true before.
  virtual void revert() = 0;
};

// The same for any inner hook, for use in wrappers. A hook that is not revertible must have
// no state.
inline bool commit_hook(Hook& hook) {
  if (auto* revertible = dynamic_cast<RevertibleHook*>(&hook)) return revertible->commit();
  const HookState state = hook.state();
  return state.tensors.empty() && state.values.empty();
}
inline void revert_hook(Hook& hook) {
  auto* revertible = dynamic_cast<RevertibleHook*>(&hook);
  revertible ? revertible->revert() : hook.reset();
}

// ---- Groups of some ranks ---------------------------------------------------------------
//
// A GroupScope runs a hook's collectives among some of the ranks only.

// While it lives, rank(), size() and the collectives of `comm` are those of `group`, to
// which this rank must belong. So any hook can run among fewer ranks:
//
//   GroupScope host(comm, comm.host_group());
//   co_return co_await inner->reduce(bucket, comm);
//
// Different groups may do this at the same time. Scopes on one Comm must end in the reverse
// order of their beginning.
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

// ---- Parts of a bucket ------------------------------------------------------------------
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

// Some of a bucket's parameters as a bucket of their own, with the same index in the step.
class BRIGADE_API BucketPart {
 public:
  // `places`: the parameters' indices in `whole`, ascending. Where their gradients are
  // contiguous, the part is a view of whole's buffer; else they are copied, into `memory`
  // if that is defined: one dimension, as many elements, the buffer's dtype and device.
  // REQUIRES: the bucket is dense.
  BucketPart(Bucket whole, const std::vector<size_t>& places, at::Tensor memory = {});

  const Bucket& bucket() const { return part_; }
  // Copies `result`, which has the part's length, to its parameters' gradients in whole's
  // buffer. Does nothing where it is there already.
  void put_back(const at::Tensor& result);

  // Whether the gradients of the parameters at `places` are contiguous.
  static bool is_view(const std::vector<size_t>& places);
  // The number of elements of a part.
  static int64_t elements(const Bucket& whole, const std::vector<size_t>& places);

 private:
  at::Tensor in_whole_;  // the memory that the part views; undefined: it is a copy
  std::vector<at::Tensor> gradients_;  // of the whole, if the part is a copy
  Bucket part_;
};

// Numbers the buckets that a hook sees, if it does not see all: the first in a step has the
// index 0, and one is the last. To be used before the first co_await.
class BRIGADE_API BucketSequence {
 public:
  // Sets how many parameters will come in a step. The default is the number of the step
  // before; in the first step, the last of all buckets is the last.
  void expect(int64_t parameters) {
    expected_ = parameters;
    told_ = true;
  }
  // To be called for every bucket of a step, also those that the hook does not see.
  void pass(const Bucket& whole);
  // Returns `seen`, made from the bucket last given to pass(), with its index in the
  // sequence.
  Bucket next(const Bucket& seen);

 private:
  bool told_ = false;
  int64_t expected_ = 0;
  int64_t parameters_ = 0;  // seen in this step
  int64_t buckets_ = 0;
  bool whole_is_last_ = false;
};

// While it lives, traffic of `comm` and of lanes split from it also counts under `name` in
// HookStats::parts.
class BRIGADE_API TrafficLabel {
 public:
  // `bytes_before`: the bytes of the gradients that are sent within.
  TrafficLabel(Comm& comm, std::string name, int64_t bytes_before);
  ~TrafficLabel();
  TrafficLabel(const TrafficLabel&) = delete;
  TrafficLabel& operator=(const TrafficLabel&) = delete;

 private:
  Comm& comm_;
  std::string before_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// For the state of a hook that is made of others: adds `from`, the state of its hook number
// `part`, under keys of its own. combine_states() combines each by itself.
BRIGADE_API void add_part_state(HookState& to, int part, const HookState& from);
BRIGADE_API HookState part_state(const HookState& from, int part);

// ---- Semaphores -------------------------------------------------------------------------
//
// A hook must not block its thread, which serves other buckets too; it awaits a semaphore
// or a latch instead.
//
//   Semaphore memory(2);                                  // two buckets at a time
//   …
//   Semaphore::Permit permit = co_await memory.acquire(comm);
//
// No later bucket overtakes a lane that waits, so all ranks still issue their collectives
// in the same order. Waiting counts against the bucket's time limit; a bucket that fails
// meanwhile stops waiting. The release must come from outside or from an earlier bucket.
//
// With NCCL, and in a group of one, a hook runs from beginning to end on one thread, so
// nobody could release it: there a wait that can't end at once throws Error.

// Thread-safe. Permits may outlive the semaphore.
class BRIGADE_API Semaphore {
  struct State;

 public:
  // One permit; it goes back to the semaphore when it is destroyed or released. Empty once
  // moved from.
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

  // Gives a Permit when awaited.
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
  // Permits are given in the order of the calls. Await the result at once.
  Acquire acquire(Comm& comm) { return Acquire(state_, comm); }
  // Adds a permit. May be called by any thread, in a hook or elsewhere.
  void release() noexcept;

 private:
  std::shared_ptr<State> state_;
};

// Opens for good when it has been counted down to zero; a bucket can wait for others with
// it. Thread-safe.
class BRIGADE_API Latch {
 public:
  explicit Latch(int count);
  ~Latch();
  // Adds one to the count. REQUIRES: the latch is not open.
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
