// SPDX-License-Identifier: BSD-3-Clause
// Start here to write a hook: a coroutine that gets a bucket of gradients and gives back
// what those gradients become.
//
//   Task<at::Tensor> fp16(Bucket bucket, Comm& comm) {
//     at::Tensor half = bucket.buffer().to(at::kHalf).div_(comm.size());
//     co_await comm.all_reduce(half);
//     bucket.buffer().copy_(half);
//     co_return bucket.buffer();
//   }
//   ddp->set_hook(make_hook("my_fp16", fp16));
//
// Between two co_awaits the code runs on a thread of the engine (with NCCL: on the autograd
// thread, with a side stream as the current one). Two buckets may be inside the same hook
// at once, but never inside the same stage between two co_awaits: state touched in one
// stage only needs no lock.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "brigade/error.h"
#include "brigade/named_state.h"
#include "brigade/task.h"

namespace brigade {

// ---- trace ------------------------------------------------------------------------------
//
// What the engine did with each bucket and when, for timelines.

// A span of time of one bucket at one station. Stations count from 0: the k-th stage
// of a hook's code runs on the thread of station k, and station k's group carries its k-th
// collective. With NCCL a station is a communicator, and times are the device's own: when
// its streams came to the work, not when the host asked for it.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    compute,     // the hook's code between two collectives
    collective,  // from issuing it to its end
  };
  Kind kind = Kind::compute;
  int station = 0;
  std::int64_t step = 0;    // as Comm::step()
  std::int64_t bucket = 0;  // as Bucket::index()
  int lane = -1;            // which part of the bucket, after Comm::split; -1: the whole
  std::int64_t bytes = 0;   // that this rank sends, for a collective
  // All processes of one host have the same clock. `ready` is when backward() handed the
  // bucket over.
  std::chrono::steady_clock::time_point ready = {}, begin = {}, end = {};
};

}  // namespace brigade

namespace c10d {
class GradBucket;
}

namespace brigade {

class ProcessGroup;
struct HostLayout;

// The gradients of several parameters in one flat tensor. Copies share it.
class BRIGADE_API Bucket {
 public:
  // `names` are those of the bucket's parameters, in its order.
  Bucket(c10d::GradBucket bucket, std::vector<std::string> names);
  // Of gradients that lie one after the other in `buffer`, one for each parameter and as
  // long as it. hook_parts.h makes such buckets of parts of another.
  Bucket(at::Tensor buffer, std::vector<at::Tensor> parameters,
         std::vector<std::string> names, int64_t index = 0, bool is_last = true);

  // Its place in this step; buckets start in this order on every rank. Changes when the
  // Reducer rebuilds buckets: key state by name instead.
  int64_t index() const;
  bool is_last() const;
  // The same gradients at another place in the step, for a hook that does not see every
  // bucket. set_buffer() on one of the two does not change the other.
  Bucket at_place(int64_t index, bool is_last) const;
  // One dimension. The hook may write into it; nobody else reads it until the hook has
  // returned.
  const at::Tensor& buffer() const;
  // Replaces the buffer that buffer() and gradients() show by one of the same length, of
  // another dtype perhaps.
  void set_buffer(at::Tensor buffer);
  // Views into the buffer, in the shapes of the parameters. Complex gradients are pairs of
  // reals in the buffer: their views have one dimension more, of two.
  std::vector<at::Tensor> gradients() const;
  // The number of values of the gradient of parameters()[place] in the buffer.
  int64_t length(size_t place) const;
  const std::vector<at::Tensor>& parameters() const;
  const std::vector<std::string>& names() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A collective under way. Awaiting it gives no value: the result is in the tensors it was
// given. Throws what the collective failed with.
class BRIGADE_API [[nodiscard]] Collective {
 public:
  struct Operation;
  explicit Collective(std::unique_ptr<Operation> operation);
  Collective(Collective&&) noexcept;
  ~Collective();
  bool await_ready();
  void await_suspend(std::coroutine_handle<> waiting);
  void await_resume();

 private:
  std::unique_ptr<Operation> operation_;
};

// A hook's way to the other ranks, for one bucket in one step. All tensors must be dense
// and contiguous. Every rank must await the same collectives, with the same sizes and
// dtypes, for the same bucket. Await each before the next is asked for; to have several
// under way at once, split().
class BRIGADE_API Comm {
 public:
  struct Lane;
  explicit Comm(std::unique_ptr<Lane> lane);
  ~Comm();

  int rank() const;
  int size() const;
  const std::string& backend() const;  // "gloo", "nccl" or "solo"; to be shown
  // True: collectives work on device memory, and streams wait for them, not the host; an
  // all_reduce adds halves as fast as it moves them. That is NCCL. False: they work on host
  // memory, and device tensors are copied there and back.
  bool works_on_device() const;
  // True: a hook runs from beginning to end on one thread of the host, and so do lanes, one
  // after the other. That is NCCL, where a lane's work overlaps with others' on the device,
  // and a group of one.
  bool runs_inline() const;
  // How the ranks sit on hosts.
  const HostLayout& layout() const;
  // The ranks of this host, by rank. Collective among them when it is called for the first
  // time. For a GroupScope.
  ProcessGroup host_group() const;
  // The ranks of this rank's place, one on each host, by host. Collective among them when
  // it is called for the first time. Empty if not every host has that place.
  ProcessGroup peer_group() const;
  // Counts the backward passes that synchronised since the hook was set, from 0.
  int64_t step() const;

  // In place: the sum over the ranks.
  Collective all_reduce(at::Tensor tensor);
  // `output`: every rank's input, by rank.
  Collective all_gather(at::Tensor input, at::Tensor output);
  // Part r of `input` goes to rank r, and part r of `output` comes from there.
  Collective all_to_all(at::Tensor input, at::Tensor output);
  // Parts of any length: the first to[0] elements of `input` go to rank 0, the next to[1]
  // to rank 1, and so on; `output` is made of from[0] elements of rank 0, from[1] of rank
  // 1 … A part for oneself is copied. REQUIRES: no rank has both tensors empty; two ranks
  // have the same length for a part between them. Sizes need not be equal on all ranks.
  Collective all_to_all(at::Tensor input, std::vector<int64_t> to, at::Tensor output,
                        std::vector<int64_t> from);
  // Part k of `input` goes to the k-th of the other ranks, by rank, and part k of `output`
  // comes from there. all_to_all would also copy the part that stays. REQUIRES: two ranks
  // or more.
  Collective all_to_others(at::Tensor input, at::Tensor output);
  // In place: what rank `root` has.
  Collective broadcast(at::Tensor tensor, int root);
  // For a rank that takes no part in `count` collectives which others await at this point,
  // in a group that it is not in. What it awaits afterwards then meets theirs.
  Collective skip(int count = 1);
  // How many collectives were awaited or sat out for the bucket so far, one after the
  // other.
  int collectives_so_far() const;
  // output: this rank's part of the sum. Moves half of what an all-reduce does, on every
  // backend.
  Task<void> reduce_scatter(at::Tensor input, at::Tensor output);

  // Runs body(0, lane), body(1, lane) … side by side, each with a Comm of its own, and ends
  // when all have ended; then throws the first exception there was. `count` must be equal
  // on all ranks.
  using Body = std::function<Task<void>(int index, Comm& lane)>;
  Task<void> split(int count, Body body);

 private:
  std::unique_ptr<Lane> lane_;
};

// What a hook keeps from step to step, as a checkpoint stores it. Tensors with a key that
// starts with "error." and values with a key that starts with "own." belong to one rank;
// everything else is equal on all. A rank without any tensor, whose values all are its own,
// leaves the keeping to others.
using HookState = NamedState;
inline constexpr const char* kErrorPrefix = "error.";
inline constexpr const char* kOwnPrefix = "own.";

// For another number of ranks: over the ranks that keep something, the mean of the errors,
// which is what error feedback needs, and the rest, without values of one rank, as the
// first of them has it. Not bitwise exact. REQUIRES: one state for each rank of the group
// that saved, from the same step.
BRIGADE_API HookState combine_states(std::span<const HookState> shards);

// What a model tells its hook before each backward pass that reduces.
struct HookPass {
  // False: more will be added to these gradients, and they will be reduced again (the first
  // pass of a static graph, inside of no_sync).
  bool complete = true;
  // There may be parameters that no rank used, and that so have no gradient.
  bool may_be_unused = false;
};

// A way to reduce gradients. One object serves one model on one rank.
class BRIGADE_API Hook {
 public:
  virtual ~Hook() = default;
  virtual std::string name() const = 0;
  // Gives the tensor that becomes the bucket's gradients: the bucket's own buffer, or one
  // of the same length and dtype.
  virtual Task<at::Tensor> reduce(Bucket bucket, Comm& comm) = 0;
  // Called when the hook is set, with the names of all parameters that will come. Throws
  // ConfigError if the hook has no use for one of them.
  virtual void set_parameters(std::span<const std::string> /*names*/) {}
  // Called when no bucket is under way.
  virtual void begin_pass(const HookPass&) {}
  // True: buckets of sparse gradients come to reduce() too. False: they are averaged as
  // they are.
  virtual bool takes_sparse() const { return false; }
  // Between steps only. A hook without state keeps the default.
  virtual HookState state() const { return {}; }
  virtual void load_state(const HookState&) {}
  // Forgets everything, as if new.
  virtual void reset() {}
  // Equal on two ranks only if their hooks do the same; compared before the first bucket.
  // Name and options, readable.
  virtual std::string fingerprint() const { return name(); }
  // Throws ConfigError when gradients of this dtype can't be reduced; asked for each dtype
  // of the model when the hook is set.
  virtual void check_dtype(at::ScalarType) const {}
  // True: reduce() is average(). A hook around it may add up and divide itself.
  virtual bool is_plain_mean() const { return false; }
  // What it has decided so far, a line each, for HookStats. Called by any thread.
  virtual std::vector<std::string> history() const { return {}; }
};

// Gives the mean of the bucket over the ranks, in the bucket's own buffer. Divides before
// it adds, so that no sum overflows. The mean of a sparse bucket is in a new tensor.
BRIGADE_API Task<at::Tensor> average(Bucket bucket, Comm& comm);

// A plain function as a hook.
BRIGADE_API std::shared_ptr<Hook> make_hook(
    std::string name, std::function<Task<at::Tensor>(Bucket, Comm&)> reduce);

struct HookTraffic {
  int64_t steps = 0;
  int64_t bytes_before = 0;  // the buckets as they came
  // What this rank put on the wire: payload, by the algorithm of each collective.
  int64_t bytes_sent = 0;
  int64_t bytes_to_other_hosts = 0;  // the part of them that leaves this host
  int64_t collectives = 0;
  double encode_seconds = 0;  // in the hook, up to its last collective
  double wait_seconds = 0;    // from issuing a collective to its end
  double decode_seconds = 0;  // in the hook, after its last collective
  double reduce_seconds = 0;  // from a bucket's start to its end, added up over buckets
  // The part of reduce_seconds while backward was still computing.
  double hidden_seconds = 0;
  double overlap() const {
    return reduce_seconds > 0 ? hidden_seconds / reduce_seconds : 0;
  }
};

struct HookStats {
  HookTraffic last_step = {};
  HookTraffic total = {};
  // "flat", or, when the hook treats the ranks of a host as one, how they sit:
  // "2 hosts x 4 ranks" (HostLayout::text).
  std::string shape = "flat";
  // Since the hook was set, by the name of a part of the hook's work (TrafficLabel); for
  // rules: by rule. Here reduce_seconds is the time that the part was under way, and
  // encode, decode and hidden seconds are 0.
  std::map<std::string, HookTraffic> parts = {};
  std::vector<std::string> history = {};  // Hook::history()
};

}  // namespace brigade
