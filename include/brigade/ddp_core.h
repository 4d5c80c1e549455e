// SPDX-License-Identifier: BSD-3-Clause
// Data-parallel training without a forward(): parameters in, averaged gradients out.
// DistributedDataParallel and the Python bindings are built on it; programs normally use
// brigade/distributed_data_parallel.h.
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

// ---- Mixed precision --------------------------------------------------------------------
//
// The dtypes in which a model computes and communicates.

// Forward and backward passes compute in a smaller dtype; parameters, gradients and the
// optimizer stay in the model's own. Each field is fp16, bf16, fp32 or fp64, or not set:
// the model's own. At least one must be set. Only floating-point tensors are cast.
//
// From forward() to the end of backward() the model's parameters *are* the copies in
// param_dtype; each gets its own data back when its bucket is full, all others (those that
// need no gradient, buffers) when backward() ends. Changing a parameter meanwhile is an
// error; forward()'s changes of buffers are kept. Without gradients (NoGradGuard), or when
// forward() throws, they are put back when forward() ends. Only one backward pass may
// follow a forward pass: a retained graph finds the full-precision data.
struct BRIGADE_API MixedPrecision {
  // Parameters, and the floating-point tensors among forward()'s arguments.
  std::optional<at::ScalarType> param_dtype = {};
  // A bucket is cast to it for the hook, which sends it, and the result is cast back. Not
  // set: param_dtype. Gradients of sparse embeddings are not cast.
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

// Must be equal on all ranks, except where noted.
struct DdpOptions {
  // ---- changes the result ----

  // Before each forward pass that trains, rank 0's buffers (the running statistics of
  // BatchNorm, for instance) replace those of the other ranks. Each rank then updates its
  // own, so they differ until the next forward pass: call sync_buffers() before an
  // evaluation, or use SyncBatchNorm.
  bool broadcast_buffers = true;
  // Rank 0's parameters and buffers replace those of the other ranks at construction.
  // False: they are equal already.
  bool init_sync = true;
  // Names, as in the model's named_parameters() and named_buffers(), that are left alone:
  // neither broadcast nor averaged. A name that the model does not have is an error.
  std::set<std::string> parameters_to_ignore = {};
  // Finds, after each forward pass, the parameters that its results do not depend on, and
  // does not wait for their gradients. Costs a walk through the graph; buckets are never
  // rebuilt. Without it, the next forward pass throws an error that names each parameter
  // without a gradient.
  bool find_unused_parameters = false;
  // Promises that the set of used parameters, and how often each is used, is the same in
  // every iteration: then unused parameters cost nothing, and re-entrant or repeated use of
  // a parameter works. If the graph changes, backward() throws.
  bool static_graph = false;
  // Computes and communicates in smaller dtypes.
  std::optional<MixedPrecision> mixed_precision = {};

  // ---- finds mistakes ----

  // After every so many forward passes that synchronise, the ranks compare a hash of all
  // parameters, before the next one. If replicas differ, all ranks throw a MismatchError
  // that names the ranks and the first parameter that differs. Not for replicas that differ
  // on purpose (LocalSGD), and not inside of join(). 0: never; at 100 it costs less than 1
  // % of the time.
  int64_t check_replicas_every = 0;

  // ---- changes only speed or memory ----

  // Size at which a bucket of gradients is closed, in MiB; > 0. Not set: 25, and 1 for the
  // first, so that communication starts early.
  std::optional<double> bucket_cap_mb = {};
  // The size of each bucket, in MiB, in the order of sending; the last one holds for all
  // that follow. Wins over bucket_cap_mb. Each > 0.
  std::vector<double> bucket_cap_mb_list = {};
  // The buckets, by parameter name, until they are rebuilt after the first iteration:
  // logging_data().bucket_parameters of an earlier run. A resumed run then sums in the same
  // order as one that was never stopped, and equals it to the last bit.
  std::vector<std::vector<std::string>> first_buckets = {};
  // Gradients are views into the buckets, which saves a copy in memory. Use brigade's
  // zero_grad, not detach_(), on such gradients.
  bool gradient_as_bucket_view = false;
  // With find_unused_parameters: if no rank used a bucket's parameters, it is not sent.
  bool skip_all_reduce_unused_params = false;
};

// Must be equal on all ranks: MismatchError.
struct JoinOptions {
  // Gradients are divided by the size of the group, so that every sample weighs the same;
  // if false, by the number of ranks that still have input.
  bool divide_by_initial_world_size = true;
  // All ranks throw UnevenInputsError as soon as one has no more input.
  bool throw_on_early_termination = false;
};

// Thrown in join() with throw_on_early_termination: at least one rank has no more input.
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

// A model, as the core sees it.
struct DdpModel {
  // In the order of definition, including those that need no gradient. A parameter that
  // several layers share appears once, with its first name.
  std::vector<DdpParameter> parameters = {};
  // Called each time, because a module may replace its buffers. Empty: no buffers.
  std::function<NamedBuffers()> buffers = {};
  // Names of layers with running statistics: their buffers must have their parameters'
  // dtype.
  std::vector<std::string> batch_norms = {};
};
// REQUIRES: `module` is owned by a std::shared_ptr; it must outlive the result.
BRIGADE_API DdpModel describe_model(torch::nn::Module& module);

// Times are means over the iterations measured: the first ten, then every hundredth.
struct DdpLoggingData {
  int64_t iterations = 0;  // with synchronised gradients, up to the last one measured
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
  // Found in the last iteration measured; needs find_unused_parameters or static_graph.
  int64_t unused_parameter_bytes = 0;
  std::vector<int64_t> initial_bucket_bytes = {};
  bool has_rebuilt_buckets = false;
  // The present buckets: after the first iteration, in the order in which gradients arrive.
  std::vector<int64_t> bucket_bytes = {};
  std::vector<std::vector<std::string>> bucket_parameters = {};
  std::chrono::nanoseconds forward_compute{0};
  std::chrono::nanoseconds backward_compute{0};
  std::chrono::nanoseconds backward_communication{0};
  std::chrono::nanoseconds backward_overlap{0};  // communication hidden behind computation
};

// Optimizers that step in the backward pass; made by apply_optimizer_in_backward
// (brigade/optimizer_in_backward.h).
class BRIGADE_API InBackward {
 public:
  virtual ~InBackward() = default;
  // Returns a hook that reduces as `hook` does (empty: by all-reduce), then steps the
  // parameters. Without bucket views it must also write the gradients of all others.
  virtual std::shared_ptr<Hook> behind(std::shared_ptr<Hook> hook) = 0;
  // Parameters that lose their gradients at the end of a backward pass that synchronises.
  virtual const std::vector<at::Tensor>& parameters() const = 0;
};

// Not thread-safe: one training loop drives it. All ranks of the group call the
// "collective" functions, in the same order.
class BRIGADE_API DdpCore {
  struct State;

 public:
  // Gives an optimizer, for instance, access to the model it was made for. It may be
  // copied, and may outlive the model.
  class ModelHandle {
   public:
    ModelHandle() = default;  // refers to no model

    // Whether the model is inside of join(). False when it is gone.
    bool joining() const;
    // The parameters in each bucket, in the order of sending. Empty until the buckets are
    // rebuilt, after the first iteration, and when the model is gone.
    std::vector<std::vector<at::Tensor>> final_buckets() const;

   private:
    friend class DdpCore;
    explicit ModelHandle(std::weak_ptr<const State> state) : state_(std::move(state)) {}
    std::weak_ptr<const State> state_;
  };

  // Collective. Throws ConfigError for a bad option or a model without trainable
  // parameters, and MismatchError, on every rank, when the ranks' models or options differ.
  DdpCore(DdpModel model, ProcessGroup group, DdpOptions options = {});
  ~DdpCore();
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  // before_forward and after_forward are to be called around each forward pass. With
  // gradients disabled they do nothing, except with mixed precision. Otherwise
  // before_forward is collective after the first iteration, and when it broadcasts buffers.
  void before_forward();
  // To be called between the two: whether arguments of forward() must be cast; casts them.
  bool casts_arguments() const;
  void cast_arguments(const std::vector<at::Tensor*>& tensors) const;
  // To be called instead of after_forward when the forward pass threw: with mixed
  // precision, puts the full-precision tensors back.
  void forward_failed() noexcept;
  // Whether after_forward wants the results of this pass.
  bool wants_results() const;
  // The tensors of the result; some may be replaced by equal ones with a longer graph.
  void after_forward(const std::vector<at::Tensor*>& results);

  // While false, backward() only accumulates. before_forward and after_forward read it.
  bool gradient_sync() const;
  void set_gradient_sync(bool on);

  // Collective. Runs `loop`, then takes part in the other ranks' collectives until all
  // loops have ended; then all ranks get the parameters of the last one.
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  // Collective over `group`: from now on gradients are averaged over it. Buckets are
  // rebuilt after the next iteration.
  void update_process_group(ProcessGroup group);
  // Collective, between iterations. Rank 0's buffers replace those of the other ranks,
  // except those that are ignored: every rank then evaluates the same model.
  void sync_buffers();
  // backward() no longer synchronises; only reset() undoes it.
  void remove_autograd_hooks();
  // Ends everything under way, also after a failed backward(), and drops gradients and
  // connections. Not collective; does not wait for other ranks. Only rejoin() and the
  // destructor may follow. The hook keeps its state.
  void leave_group();
  // Collective over `group`, after leave_group(): trains there. Parameters and the hook's
  // state stay each rank's own: the caller makes them equal. Throws ConfigError when the
  // hook has a group of its own.
  void rejoin(ProcessGroup group);
  // Collective. Makes training possible again after a failed backward(): with new
  // connections and buckets, no gradients, a hook without state, and rank 0's parameters
  // and buffers (if init_sync).
  void reset();

  // From the next pass on `hook` reduces the gradients, over `group` (empty: the model's
  // own). An empty hook: the Reducer's own all-reduce. Every rank must set the same hook:
  // if they differ, the next forward pass throws MismatchError on every rank. Between
  // iterations only; throws ConfigError when the hook can't reduce the model's dtypes.
  void set_hook(std::shared_ptr<Hook> hook, ProcessGroup group = {});
  const std::shared_ptr<Hook>& hook() const;
  // Between iterations only. hook() does not change, and hooks may still be set later.
  void set_in_backward(std::shared_ptr<InBackward> in_backward);
  const std::shared_ptr<InBackward>& in_backward() const;
  // The present hook's; zeros without one.
  HookStats hook_stats() const;
  // While on, the hook's events (TraceEvent) are kept until take_trace(), several for each
  // bucket and step, so take them now and then. Off at first; without a hook there are
  // none.
  void record_trace(bool on);
  // Returns and forgets the events since the last call, in no order. Between iterations.
  std::vector<TraceEvent> take_trace();

  DdpLoggingData logging_data() const;
  const ProcessGroup& group() const;
  const DdpOptions& options() const;
  // The parameters with averaged gradients, and their names.
  const std::vector<at::Tensor>& parameters() const;
  const std::vector<std::string>& parameter_names() const;
  // For each of parameters(): whether its gradients are sparse.
  const std::vector<bool>& sparse_gradients() const;
  // Whether `tensor` is one of parameters().
  bool trains(const at::Tensor& tensor) const;

  // Collective, between iterations. Rebuilds the buckets now, if the next forward pass
  // would.
  void rebuild_buckets();
  // The names of the parameters in each present bucket; none after leave_group().
  std::vector<std::vector<std::string>> bucket_layout() const;
  // Between iterations, with the same names on all ranks: uses these buckets from now on,
  // as a new model uses DdpOptions::first_buckets, with the same errors.
  void begin_with_buckets(const std::vector<std::vector<std::string>>& names);
  ModelHandle handle() const;

 private:
  std::shared_ptr<State> state_;
};

// Drops the parameters' gradients, or sets them to zero; also those that are views into
// buckets.
BRIGADE_API void zero_grad(const std::vector<at::Tensor>& parameters,
                           bool set_to_none = true);
// Does the same as optimizer.zero_grad(), also for gradients that are views into buckets,
// for which LibTorch's throws.
BRIGADE_API void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none = true);

}  // namespace brigade
