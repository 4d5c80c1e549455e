// The state behind a DdpCore. For the files of this folder only.
#pragma once
#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <unordered_set>

#include "brigade/ddp_core.h"
#include "ddp/mixed_precision.h"
#include "engine/engine.h"
#include "engine/failure/timed_group.h"
#include "engine/reducer_hook.h"

namespace brigade {

struct DdpCore::State : std::enable_shared_from_this<DdpCore::State> {
  DdpModel model;  // without the ignored tensors
  DdpOptions options;
  ProcessGroup group;
  // Wraps `group` for collectives outside hooks. It is empty if there is nothing to watch.
  std::unique_ptr<engine::TimedGroup> watched;

  // The parameters that need gradients, by the Reducer's index.
  std::vector<at::Tensor> trained;
  std::vector<std::string> names;
  std::vector<bool> sparse;
  const std::shared_ptr<engine::ParameterNames> parameter_names =
      std::make_shared<engine::ParameterNames>();

  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  std::vector<int64_t> initial_bucket_bytes;
  // The nodes on which the Reducer has put its hooks; the Reducer keeps them alive.
  std::vector<const torch::autograd::Node*> accumulators;
  bool hooks_removed = false;

  // The hook, the engine that runs it and the group that the hook was given, if any. The
  // engine goes with its group; a Reducer takes a hook only once.
  std::shared_ptr<Hook> hook;
  std::shared_ptr<engine::Engine> engine;
  ProcessGroup hook_group;
  // The hook that the caller set. `hook` wraps it: with mixed precision in another dtype,
  // with in_backward in what steps afterwards.
  std::shared_ptr<Hook> callers_hook;
  std::shared_ptr<InBackward> in_backward;
  std::unordered_set<const c10::TensorImpl*> stepped;  // the parameters of in_backward
  const std::shared_ptr<engine::ReducerHook> reducer_hook =
      std::make_shared<engine::ReducerHook>();
  // Whether the last pass that synchronises reduces all gradients; see HookPass.
  bool pass_complete = true;
  // The trace of engines that are gone, and whether the present engine records one.
  std::vector<TraceEvent> trace;
  bool tracing = false;
  // Whether all ranks are known to have the same hook.
  bool hook_agreed = false;
  // The number of passes since the replicas were compared.
  int64_t unchecked_passes = 0;

  bool gradient_sync = true;
  // Whether this pass begins with the broadcast of buffers. It does not after a pass that
  // only accumulated: the ranks' buffers must stay as they are until all are done.
  bool buffer_sync = true;
  // A static graph's first pass reduces all buckets at its end, inside of no_sync too: the
  // Reducer counts the uses of each parameter until its first reduction, so that must come
  // after one pass. Later accumulation is not disturbed: the mean of a mean is itself.
  std::atomic<bool> static_first_pass_done{false};

  // Mixed precision: the copies, and whether they are dropped when this forward pass ends.
  std::shared_ptr<LowPrecision> low_precision;
  bool restore_after_forward = false;

  struct Joining {
    JoinOptions options;
    // It is in flight during the pass that made it; nobody waits for it here.
    c10::intrusive_ptr<c10d::Work> notice = nullptr;
    bool missed_static_first_pass = false;
  };
  std::optional<Joining> joining;

  bool static_first_pass() const { return options.static_graph && !static_first_pass_done; }
  // Whether the next backward pass synchronises.
  bool syncs() const { return gradient_sync || static_first_pass(); }
  bool searches_graph() const {
    return options.find_unused_parameters && !options.static_graph;
  }
  bool may_leave_unused() const {
    return options.find_unused_parameters || options.static_graph;
  }
  bool has_buffers_to_sync() const {
    return buffer_sync && options.broadcast_buffers && model.buffers;
  }
  at::Device device() const { return trained.front().device(); }

  void make_reducer();
  // Begins with these buckets of names; with none, as the Reducer makes them.
  void make_reducer(const std::vector<std::vector<std::string>>& buckets);
  // Gives the model's tensors their own data back if low-precision copies replace it.
  void restore_full_precision();
  void drop_low_precision() noexcept;
  // hooking.cpp
  std::shared_ptr<Hook> around(std::shared_ptr<Hook> callers) const;
  void make_engine(const std::string& name = "");  // empty: a new name
  void close_engine();
  void register_hook();
  void check_same_hook();
  void check_same_layout();
  void check_same_engine();
  void before_bucket(const c10d::GradBucket& bucket);
  void drop_what_is_in(const c10d::GradBucket& bucket);
  // agreement.cpp: called in each pass that synchronises.
  void check_replicas();
  // Whether backward() will find the Reducer's hooks. Tensor::set_ (as in torch::load) and
  // to(dtype) give a parameter another accumulator; gradients would silently stay local.
  bool hooks_in_place() const;
  void refuse_capture() const;
  // Calls into the Reducer; its error about missing gradients gets the parameters' names.
  void prepare_forward();
  void meet_before_forward();
  void prepare_backward(const std::vector<at::Tensor>& results);
  // own_collectives.cpp
  void enter(ProcessGroup entered);
  const c10::intrusive_ptr<c10d::ProcessGroup>& collectives() const;
  void broadcast_model(int root) const;
  void broadcast_buffers(int root) const;

  // join.cpp: sends what the ranks that have ended need to know of a pass.
  void announce_pass();
  void announce_gradient_sync();
  // Returns the largest rank that is a candidate; -1: none is.
  int agree_on_root(bool candidate) const;
  at::Tensor sum_over_ranks(at::Tensor tensor) const;
  // With throw_on_early_termination, active ranks ask which ranks have ended; those answer.
  at::Tensor ended_ranks(bool self) const;
  // Runs the collectives of an active rank's pass, without its computation.
  void shadow_pass();
};

// Collective. Throws MismatchError on every rank unless all have equal models and options.
// `refusal` says why this rank does not take its own model (empty: it does). Then the
// others throw too, and the caller throws itself.
void verify_same_on_all_ranks(const DdpModel& model, const DdpOptions& options,
                              const ProcessGroup& group, const std::string& refusal);

// Turns what LibTorch throws when a model's own collectives or its Reducer fail into an
// Error that says where it happened, without a stack trace.
[[noreturn]] void throw_ours(const char* what, const ProcessGroup& group,
                             const c10::Error& error);

// Replaces each of `results` that has a graph by an equal tensor behind one common node.
// When backward() reaches that node, it calls `at_backward`, then continues behind all
// results, also those that the loss did not use. So every parameter's accumulator runs, and
// no bucket waits for an unused result.
void join_results(const std::vector<at::Tensor*>& results,
                  std::function<void()> at_backward);

}  // namespace brigade
