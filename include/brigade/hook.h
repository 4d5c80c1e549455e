// SPDX-License-Identifier: BSD-3-Clause
// Start here to write a hook: a coroutine that gets a bucket of gradients and returns the
// values that replace them.
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

// ---- Trace events -----------------------------------------------------------------------
//
// Trace events say what the engine did with each bucket and when, for timelines.

// A span of time of one bucket at one station. Stations count from 0: the k-th stage of a
// hook's code runs on the thread of station k, and station k's group carries its k-th
// collective. With NCCL a station is a communicator, and times are the device's: when its
// streams reached the work, not when the host issued it.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    compute,     // the hook's code between two collectives
    collective,  // from issuing it to its end
  };
  Kind kind = Kind::compute;
  int station = 0;
  std::int64_t step = 0;    // as Comm::step()
  std::int64_t bucket = 0;  // as Bucket::index()
  int lane = -1;            // the lane of Comm::split; -1: the whole bucket
  std::int64_t bytes = 0;   // sent by this rank, for a collective
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
  // `names` are the names of the bucket's parameters, in the bucket's order.
  Bucket(c10d::GradBucket bucket, std::vector<std::string> names);
  // `buffer` holds the gradients of `parameters` one after the other, each as long as its
  // parameter. BucketPart makes such buckets from parts of another.
  Bucket(at::Tensor buffer, std::vector<at::Tensor> parameters,
         std::vector<std::string> names, int64_t index = 0, bool is_last = true);

  // The bucket's index in this step; buckets start in this order on every rank. The index
  // changes when the Reducer rebuilds buckets: key state by name instead.
  int64_t index() const;
  bool is_last() const;
  // The same gradients with another index in the step, for a hook that does not see every
  // bucket. set_buffer() on one of the two does not change the other.
  Bucket at_place(int64_t index, bool is_last) const;
  // A tensor of one dimension. The hook may write into it; nobody else reads it until the
  // hook has returned.
  const at::Tensor& buffer() const;
  // Replaces the buffer of buffer() and gradients() by one of the same length; its dtype
  // may differ.
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
// given. Awaiting throws the collective's error.
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

// Communication with the other ranks, for one bucket in one step. All tensors must be dense
// and contiguous. Every rank must await the same collectives, with the same sizes and
// dtypes, for the same bucket. Await each before the next is asked for; split() runs
// several at once.
class BRIGADE_API Comm {
 public:
  struct Lane;
  explicit Comm(std::unique_ptr<Lane> lane);
  ~Comm();

  int rank() const;
  int size() const;
  const std::string& backend() const;  // "gloo", "nccl" or "solo"; for display
  // True (NCCL): collectives work on device memory, streams wait for them, not the host,
  // and an all_reduce adds halves as fast as it moves them. False: collectives work on host
  // memory, and device tensors are copied there and back.
  bool works_on_device() const;
  // True: a hook runs from beginning to end on one thread of the host, and so do lanes, one
  // after the other. This holds with NCCL, where the lanes' work overlaps on the device,
  // and in a group of one.
  bool runs_inline() const;
  // How the ranks are spread over hosts.
  const HostLayout& layout() const;
  // The ranks of this host, by rank, for a GroupScope. The first call is collective among
  // them.
  ProcessGroup host_group() const;
  // The ranks with this rank's place, one on each host, by host. The first call is
  // collective among them. Empty if not every host has that place.
  ProcessGroup peer_group() const;
  // The number of backward passes that synchronised since the hook was set.
  int64_t step() const;

  // In place: the sum over the ranks.
  Collective all_reduce(at::Tensor tensor);
  // `output` becomes every rank's input, by rank.
  Collective all_gather(at::Tensor input, at::Tensor output);
  // Part r of `input` goes to rank r, and part r of `output` comes from there.
  Collective all_to_all(at::Tensor input, at::Tensor output);
  // The same with parts of any length: the first to[0] elements of `input` go to rank 0,
  // the next to[1] to rank 1, and so on; `output` gets from[0] elements from rank 0,
  // from[1] from rank 1 … A rank's part for itself is copied. REQUIRES: no rank has both
  // tensors empty; sender and receiver give a part the same length. Sizes need not be equal
  // on all ranks.
  Collective all_to_all(at::Tensor input, std::vector<int64_t> to, at::Tensor output,
                        std::vector<int64_t> from);
  // Part k of `input` goes to the k-th of the other ranks, by rank, and part k of `output`
  // comes from there. all_to_all would also copy the part that stays. REQUIRES: two ranks
  // or more.
  Collective all_to_others(at::Tensor input, at::Tensor output);
  // In place: the tensor of rank `root`.
  Collective broadcast(at::Tensor tensor, int root);
  // To be awaited by a rank outside of a group while the group's ranks await `count`
  // collectives here. Its next collective then matches theirs.
  Collective skip(int count = 1);
  // The number of collectives that were awaited or skipped for the bucket so far.
  int collectives_so_far() const;
  // `output` becomes this rank's part of the sum. Moves half as many bytes as an
  // all-reduce.
  Task<void> reduce_scatter(at::Tensor input, at::Tensor output);

  // Runs body(0, lane), body(1, lane) … concurrently, each with a Comm of its own, ends
  // when all have ended, and then throws the first exception. `count` must be equal on all
  // ranks.
  using Body = std::function<Task<void>(int index, Comm& lane)>;
  Task<void> split(int count, Body body);

 private:
  std::unique_ptr<Lane> lane_;
};

// The state of a hook, as a checkpoint stores it. Tensors with a key that starts with
// "error." and values with a key that starts with "own." belong to one rank; everything
// else is equal on all. A rank that has no tensor, and only "own." values, keeps no state.
using HookState = NamedState;
inline constexpr const char* kErrorPrefix = "error.";
inline constexpr const char* kOwnPrefix = "own.";

// Makes a state for another number of ranks: the mean of the errors of all ranks that keep
// state, which error feedback needs, and the first such rank's other entries, except "own."
// values. Not bitwise exact. REQUIRES: one state for each rank of the group that saved,
// from the same step.
BRIGADE_API HookState combine_states(std::span<const HookState> shards);

// Announces a backward pass that reduces.
struct HookPass {
  // False: more will be added to these gradients, and they will be reduced again (the first
  // pass of a static graph, inside of no_sync).
  bool complete = true;
  // There may be parameters that no rank used, and that so have no gradient.
  bool may_be_unused = false;
};

// A Hook reduces gradients. One object serves one model on one rank.
class BRIGADE_API Hook {
 public:
  virtual ~Hook() = default;
  virtual std::string name() const = 0;
  // Returns the tensor that becomes the bucket's gradients: the bucket's own buffer, or one
  // of the same length and dtype.
  virtual Task<at::Tensor> reduce(Bucket bucket, Comm& comm) = 0;
  // Called when the hook is set, with the names of all parameters that will come. Throws
  // ConfigError if the hook cannot handle one of them.
  virtual void set_parameters(std::span<const std::string> /*names*/) {}
  // Called before each pass, when no bucket is under way.
  virtual void begin_pass(const HookPass&) {}
  // True: buckets of sparse gradients come to reduce() too. False: they are averaged as
  // they are.
  virtual bool takes_sparse() const { return false; }
  // Called between steps only. A hook without state keeps the default.
  virtual HookState state() const { return {}; }
  virtual void load_state(const HookState&) {}
  // Drops all state.
  virtual void reset() {}
  // Name and options, readable. Equal on two ranks only if their hooks do the same; ranks
  // compare it before the first bucket.
  virtual std::string fingerprint() const { return name(); }
  // Throws ConfigError when gradients of this dtype can't be reduced; asked for each dtype
  // of the model when the hook is set.
  virtual void check_dtype(at::ScalarType) const {}
  // True: reduce() is average(), so a wrapper may sum and divide itself.
  virtual bool is_plain_mean() const { return false; }
  // The hook's decisions so far, a line each, for HookStats. Called by any thread.
  virtual std::vector<std::string> history() const { return {}; }
};

// Returns the mean of the bucket over the ranks, in the bucket's own buffer. Divides before
// it sums, so that no sum overflows. The mean of a sparse bucket is in a new tensor.
BRIGADE_API Task<at::Tensor> average(Bucket bucket, Comm& comm);

// Makes a hook from a plain function.
BRIGADE_API std::shared_ptr<Hook> make_hook(
    std::string name, std::function<Task<at::Tensor>(Bucket, Comm&)> reduce);

struct HookTraffic {
  int64_t steps = 0;
  int64_t bytes_before = 0;  // the buckets as they came
  // Payload that this rank sent, by the algorithm of each collective.
  int64_t bytes_sent = 0;
  int64_t bytes_to_other_hosts = 0;  // the share that leaves this host
  int64_t collectives = 0;
  double encode_seconds = 0;  // in the hook, up to its last collective
  double wait_seconds = 0;    // from issuing a collective to its end
  double decode_seconds = 0;  // in the hook, after its last collective
  double reduce_seconds = 0;  // from a bucket's start to its end, summed over buckets
  // The share of reduce_seconds while backward was still computing.
  double hidden_seconds = 0;
  double overlap() const {
    return reduce_seconds > 0 ? hidden_seconds / reduce_seconds : 0;
  }
};

struct HookStats {
  HookTraffic last_step = {};
  HookTraffic total = {};
  // "flat", or HostLayout::text ("2 hosts x 4 ranks") when the hook treats the ranks of a
  // host as one.
  std::string shape = "flat";
  // Traffic since the hook was set, by TrafficLabel; for rules: by rule. Here
  // reduce_seconds is the time within the label, and encode, decode and hidden seconds are
  // 0.
  std::map<std::string, HookTraffic> parts = {};
  std::vector<std::string> history = {};  // Hook::history()
};

}  // namespace brigade
