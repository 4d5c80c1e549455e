// SPDX-License-Identifier: BSD-3-Clause
// Data-parallel training without a forward(): parameters in, averaged gradients out.
// DistributedDataParallel and the bindings to other languages stand on it; programs
// normally use brigade/distributed_data_parallel.h.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- mixed precision --------------------------------------------------------------------
//
// Mixed precision: the dtypes that a model computes and communicates in.

// Forward and backward passes compute in a smaller dtype; parameters, gradients and the
// optimizer stay in the model's own. Each field: fp16, bf16, fp32 or fp64; not set: as the
// model has it. At least one is set. Only floating-point tensors are cast.
//
// From forward() to the end of backward() the model's parameters *are* the copies in
// param_dtype; each gets its own data back when its bucket is full, all others (those that
// need no gradient, buffers) when backward() ends. A parameter that was changed meanwhile
// is an error; what forward() wrote into buffers is kept. Without gradients (NoGradGuard)
// they are put back when forward() returns, and so they are when it throws. One backward
// pass for each forward pass: a graph that was retained finds the full-precision data.
struct BRIGADE_API MixedPrecision {
  // Parameters, and the floating-point tensors among forward()'s arguments.
  std::optional<at::ScalarType> param_dtype = {};
  // What a bucket is cast to for the hook, and so what travels; the result is cast back.
  // Not set: param_dtype. Gradients of sparse embeddings travel as they are.
  std::optional<at::ScalarType> reduce_dtype = {};
  // Buffers, from forward() to the end of backward().
  std::optional<at::ScalarType> buffer_dtype = {};

  // "param bf16, reduce bf16"
  std::string describe() const;
};

}  // namespace brigade

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace brigade {

// Must be equal on all ranks, except where a field says otherwise.
struct DdpOptions {
  // ---- changes the result ----

  // Before each forward pass that trains, rank 0's buffers (the running statistics of
  // BatchNorm, for instance) replace those of the other ranks. Each rank then updates its
  // own, so that after a training step they differ until the next one: call sync_buffers()
  // before an evaluation, or use SyncBatchNorm (brigade/distributed_data_parallel.h).
  bool broadcast_buffers = true;
  // Rank 0's parameters and buffers replace those of the other ranks at construction.
  // False: the caller has made them equal.
  bool init_sync = true;
  // Names, as in the model's named_parameters() and named_buffers(), that are left alone:
  // neither broadcast nor averaged. A name that the model does not have is an error.
  std::set<std::string> parameters_to_ignore = {};
  // Looks, after each forward pass, for parameters that its results do not depend on, and
  // does not wait for their gradients. Costs a walk through the graph and keeps the first
  // assignment of buckets. Without it a parameter that gets no gradient is an error, which
  // names it, in the next forward pass.
  bool find_unused_parameters = false;
  // Promises that the set of used parameters, and how often each is used, is the same in
  // every iteration: then unused parameters cost nothing, and re-entrant or repeated use of
  // a parameter works. That the graph changed is an error in backward().
  bool static_graph = false;
  // Forward and backward passes, and what travels, in smaller dtypes.
  std::optional<MixedPrecision> mixed_precision = {};

  // ---- finds mistakes ----

  // After every so many forward passes that synchronise, the ranks compare a hash of all
  // parameters, before the next one. Ranks that have drifted apart throw MismatchError, all
  // of them, which names those that differ and the first parameter in which they do. 0:
  // never. For replicas that are meant to be equal: not with LocalSGD, say. Not inside of
  // join(). 0 or more; at 100 it costs less than a hundredth of the time.
  int64_t check_replicas_every = 0;

  // ---- changes only speed or memory ----

  // Size at which a bucket of gradients is closed, in MiB; > 0. Not set: 25, and 1 for the
  // first, so that communication starts early.
  std::optional<double> bucket_cap_mb = {};
  // The size of each bucket, in MiB, in the order in which they are sent; the last one
  // holds for all that follow. Wins over bucket_cap_mb. Each > 0.
  std::vector<double> bucket_cap_mb_list = {};
  // The buckets until they are made anew after the first iteration, by parameter name: what
  // logging_data().bucket_parameters showed in an earlier run. A resumed run then adds up
  // in the same order as one that was never stopped, and equals it to the last bit.
  std::vector<std::vector<std::string>> first_buckets = {};
  // Gradients are views into the buckets: no second copy of them in memory. Use zero_grad
  // of brigade, not detach_(), on such gradients.
  bool gradient_as_bucket_view = false;
  // With find_unused_parameters: if no rank used a bucket's parameters, it is not sent.
  bool skip_all_reduce_unused_params = false;
};

// Must be equal on all ranks: MismatchError.
struct JoinOptions {
  // Gradients are divided by the size of the group, so that every sample weighs the same.
  // False: by the number of ranks that still have input.
  bool divide_by_initial_world_size = true;
  // All ranks throw UnevenInputsError as soon as one has no more input.
  bool throw_on_early_termination = false;
};

// In join() with throw_on_early_termination: at least one rank has come to its end.
class BRIGADE_API UnevenInputsError : public Error {
 public:
  using Error::Error;
};

struct DdpParameter {
  std::string name = {};
  at::Tensor tensor = {};
  bool sparse_gradient = false;
};
using NamedBuffers = std::vector<std::pair<std::string, at::Tensor>>;

// What the core must know of a model.
struct DdpModel {
  // In the order of definition; one that several layers share appears once, with its first
  // name. Those that need no gradient are in it too.
  std::vector<DdpParameter> parameters = {};
  // Asked each time, because a module may replace its buffers. Empty: no buffers.
  std::function<NamedBuffers()> buffers = {};
  // Layers that keep running statistics, by name: they want buffers of their parameters'
  // dtype.
  std::vector<std::string> batch_norms = {};
};
// REQUIRES: `module` is owned by a std::shared_ptr; it must outlive the result.
BRIGADE_API DdpModel describe_model(torch::nn::Module& module);

// Times are means over the iterations measured: the first ten, then every hundredth.
struct DdpLoggingData {
  int64_t iterations = 0;  // that synchronised gradients, up to the last one measured
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
  // Found in the last iteration measured; needs find_unused_parameters or static_graph.
  int64_t unused_parameter_bytes = 0;
  std::vector<int64_t> initial_bucket_bytes = {};
  bool has_rebuilt_buckets = false;
  // Of now: after the first iteration in the order in which gradients arrive.
  std::vector<int64_t> bucket_bytes = {};
  std::vector<std::vector<std::string>> bucket_parameters = {};
  std::chrono::nanoseconds forward_compute{0};
  std::chrono::nanoseconds backward_compute{0};
  std::chrono::nanoseconds backward_communication{0};
  std::chrono::nanoseconds backward_overlap{0};  // communication hidden behind computation
};

// Optimizers that step in the backward pass; apply_optimizer_in_backward
// (brigade/optimizer_in_backward.h) makes one.
class BRIGADE_API InBackward {
 public:
  virtual ~InBackward() = default;
  // A hook that reduces as `hook` does (empty: by all-reduce), then steps the parameters.
  // Without bucket views it also writes the gradients of all others: nobody else does then.
  virtual std::shared_ptr<Hook> behind(std::shared_ptr<Hook> hook) = 0;
  // Whose gradients are dropped at the end of a backward pass that synchronises.
  virtual const std::vector<at::Tensor>& parameters() const = 0;
};

// Not thread-safe: one training loop drives it. Every function that says "collective" is
// called by all ranks of the group, in the same order.
class BRIGADE_API DdpCore {
  struct State;

 public:
  // Answers to those who work beside a model, such as an optimizer that was made for it. It
  // may be copied, and may outlive the model.
  class ModelHandle {
   public:
    ModelHandle() = default;  // of no model

    // Whether the model is inside of join(). False when the model is gone.
    bool joining() const;
    // The parameters in each bucket, in the order in which buckets are sent. Empty while
    // the buckets are still to be made anew, which happens after the first iteration, and
    // when the model is gone.
    std::vector<std::vector<at::Tensor>> final_buckets() const;

   private:
    friend class DdpCore;
    explicit ModelHandle(std::weak_ptr<const State> state) : state_(std::move(state)) {}
    std::weak_ptr<const State> state_;
  };

  // Collective. Throws ConfigError for a bad option or a model with nothing to train, and
  // MismatchError, on every rank, when the ranks' models or options differ.
  DdpCore(DdpModel model, ProcessGroup group, DdpOptions options = {});
  ~DdpCore();
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  // To be called before and after each forward pass. With gradients disabled they do
  // nothing, except with mixed precision. Otherwise before_forward is collective after the
  // first iteration, and when it broadcasts buffers.
  void before_forward();
  // Between the two: whether arguments of forward() must be cast, and casts them.
  bool casts_arguments() const;
  void cast_arguments(const std::vector<at::Tensor*>& tensors) const;
  // In place of after_forward when the forward pass threw: with mixed precision puts the
  // full-precision tensors back.
  void forward_failed() noexcept;
  // Whether after_forward wants the results of this pass.
  bool wants_results() const;
  // The tensors of the result; some may be replaced by equal ones with a longer graph.
  void after_forward(const std::vector<at::Tensor*>& results);

  // While false, backward() only accumulates. Looked at by before_forward and
  // after_forward.
  bool gradient_sync() const;
  void set_gradient_sync(bool on);

  // Collective. Runs `loop`, then takes part in the other ranks' collectives until all have
  // come to their end; then all get the parameters of the last one.
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  // Collective over `group`: from now on gradients are averaged over it. Buckets are
  // rebuilt after the next iteration.
  void update_process_group(ProcessGroup group);
  // Collective, between iterations. Rank 0's buffers replace those of the other ranks,
  // except those that are ignored: every rank then evaluates the same model.
  void sync_buffers();
  // backward() no longer synchronises; only reset() undoes it.
  void remove_autograd_hooks();
  // Ends what is under way, as a failed backward() may have left it, and drops gradients
  // and connections. Not collective, waits for nobody. Only rejoin() and the destructor may
  // follow. The hook keeps its state.
  void leave_group();
  // Collective over `group`, after leave_group(): trains there. Parameters and the hook's
  // state stay each rank's own: the caller makes them equal. Throws ConfigError when the
  // hook has a group of its own.
  void rejoin(ProcessGroup group);
  // Collective. Makes training possible again after a failed backward(): fresh connections,
  // fresh buckets, no gradients, a hook that has forgotten all, and rank 0's parameters and
  // buffers (if init_sync).
  void reset();

  // From the next pass on `hook` reduces the gradients, over `group` (empty: the model's
  // own). An empty hook: the Reducer's own all-reduce. Every rank sets the same; the next
  // forward pass compares them and throws MismatchError, on every rank, where they differ.
  // Between iterations only; throws ConfigError when the hook can't reduce the model's
  // dtypes.
  void set_hook(std::shared_ptr<Hook> hook, ProcessGroup group = {});
  const std::shared_ptr<Hook>& hook() const;
  // Between iterations only. `hook()` stays what it is; so does what is set later.
  void set_in_backward(std::shared_ptr<InBackward> in_backward);
  const std::shared_ptr<InBackward>& in_backward() const;
  // Of the present hook; zeros without one.
  HookStats hook_stats() const;
  // While on, what the hook does is noted, until it is taken: some events for each bucket
  // and step, so take them now and then. Off at first; nothing without a hook. Times
  // are the host's; with NCCL the device's own (brigade/hook.h).
  void record_trace(bool on);
  // What was noted since the last call, and forgets it; in no order. Between iterations.
  std::vector<TraceEvent> take_trace();

  DdpLoggingData logging_data() const;
  const ProcessGroup& group() const;
  const DdpOptions& options() const;
  // The parameters with averaged gradients, and their names.
  const std::vector<at::Tensor>& parameters() const;
  const std::vector<std::string>& parameter_names() const;
  // By the same index, whether its gradients are sparse.
  const std::vector<bool>& sparse_gradients() const;
  // Whether `tensor` is one of parameters().
  bool trains(const at::Tensor& tensor) const;

  // Collective, between iterations. If the next forward pass would make the buckets anew,
  // makes them now.
  void rebuild_buckets();
  // The names of the parameters in each bucket, as they are now; none after leave_group().
  std::vector<std::vector<std::string>> bucket_layout() const;
  // Between iterations, with the same names on all ranks: goes on with these buckets, as a
  // new model does with DdpOptions::first_buckets. Throws ConfigError as that does.
  void begin_with_buckets(const std::vector<std::vector<std::string>>& names);
  ModelHandle handle() const;

 private:
  std::shared_ptr<State> state_;
};

// Drops the parameters' gradients, or sets them to zero; also those that are views into
// buckets.
BRIGADE_API void zero_grad(const std::vector<at::Tensor>& parameters,
                           bool set_to_none = true);
// What optimizer.zero_grad() does, also where gradients are views into buckets, on which
// LibTorch's own throws.
BRIGADE_API void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none = true);

}  // namespace brigade
