// SPDX-License-Identifier: BSD-3-Clause
// ZeRO: the optimizer's state is divided among the ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/optim.h"
#include "brigade/process_group.h"

namespace brigade::optim {

// ---- ZeRO after the backward pass -------------------------------------------------------
//
// Each rank keeps the optimizer's state of its share of the parameters, steps that share,
// and sends the new values to all others. Training is the same as with the optimizer on
// every rank; its state takes 1/ranks of the memory.
//
//   brigade::optim::ZeroRedundancyOptimizer zero(ddp, "adam:lr=0.001");
//   loss(ddp->forward(data), target).backward();
//   zero.step();
//
// apply_zero_in_backward(), below, steps in the backward pass instead.

// Steps one rank's share of a group of parameters.
class BRIGADE_API ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // Called by one thread at a time, with gradients disabled. Does not change the gradient.
  virtual void step_param(const at::Tensor& parameter, const at::Tensor& gradient) = 0;
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  // As in Optimizer: shared tensors and options, by the names given. If something does not
  // fit, load_state throws ConfigError and changes nothing.
  virtual OptimizerState state(const NamedParameters& parameters) const = 0;
  virtual void load_state(const OptimizerState& state,
                          const NamedParameters& parameters) = 0;
  // Name and options, readable.
  virtual std::string fingerprint() const = 0;
};

// Makes a rank's optimizer: from text, as make_optimizer takes it; or by a function that
// gets the share's parameters and returns an optimizer of brigade::optim or of
// torch::optim. Its tensors share memory with the parameters, and are exactly those that
// the optimizer will step; there may be none. The function is called again when the share
// changes and when state is loaded, and must return the same kind each time.
class BRIGADE_API ShardFactory {
 public:
  using Make =
      std::function<std::shared_ptr<ShardOptimizer>(const std::vector<at::Tensor>& share)>;

  ShardFactory(const char* spec) : ShardFactory(std::string(spec)) {}
  ShardFactory(std::string spec);  // throws ConfigError for a bad one
  template <std::invocable<const std::vector<at::Tensor>&> F>
  ShardFactory(F make) {
    using Made = std::invoke_result_t<F&, const std::vector<at::Tensor>&>;
    if constexpr (std::convertible_to<Made, std::shared_ptr<Optimizer>>) {
      *this = of_functional(std::move(make));
    } else {
      *this = of_torch(std::move(make));
    }
  }

  std::shared_ptr<ShardOptimizer> operator()(const std::vector<at::Tensor>& share) const {
    return make_(share);
  }

 private:
  template <class T>
  using Maker = std::function<std::shared_ptr<T>(const std::vector<at::Tensor>& share)>;
  ShardFactory() = default;
  static ShardFactory of_functional(Maker<Optimizer> make);
  static ShardFactory of_torch(Maker<torch::optim::Optimizer> make);

  Make make_;
};

// Parameters with the same optimizer. Names must differ across all groups.
struct ZeroGroup {
  NamedParameters parameters = {};
  ShardFactory optimizer;
};

struct ZeroOptions {
  // ---- changes only speed or memory ----

  // The parameters become views into one flat tensor for each owner, which step()
  // broadcasts without copies. A parameter's old memory, kept through data_ptr() or
  // detach(), no longer changes.
  bool parameters_as_bucket_view = false;
};

// An optimizer with its state divided among the ranks; zero_part (brigade/checkpoint.h)
// saves any. All ranks of its group call the "collective" functions.
class BRIGADE_API ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;

  // This rank's state, for the present number of ranks. Tensors are shared, not copied.
  virtual OptimizerState shard_state() const = 0;
  // Loads this rank's state from `shards` of shard_state(): its own, if as many ranks saved
  // them; otherwise all, by rank. Checks everything, changes nothing, and throws
  // ConfigError where it does not fit. The function it returns makes the change, on all
  // ranks together.
  virtual std::function<void()> load_shards(const std::vector<OptimizerState>& shards,
                                            int saved_ranks) = 0;

  // Collective. Returns all ranks' state as one, on rank `to`, in host memory; on others an
  // empty one. A key is "group.N/" and the key of that group's optimizer.
  virtual OptimizerState consolidate(int to = 0) const = 0;
  // Loads this rank's share of a consolidated state, saved by any number of ranks. All
  // ranks must load the same one.
  virtual void load_consolidated(const OptimizerState& whole) = 0;

  // Bytes of the state's tensors on this rank.
  int64_t state_bytes() const;

  // Sets the rate of all groups, or of one, from the next step on; on all ranks.
  virtual void set_lr(double lr) = 0;
  virtual void set_lr(size_t group, double lr) = 0;
  virtual double lr(size_t group = 0) const = 0;
};

// Assigns whole parameters to ranks: by size, the largest first, each to the rank with
// least so far. Not thread-safe.
class BRIGADE_API ZeroRedundancyOptimizer : public ShardedOptimizer {
 public:
  // Collective. Throws ConfigError for bad input, and MismatchError, on every rank, where
  // the ranks' parameters or optimizers differ.
  ZeroRedundancyOptimizer(std::vector<ZeroGroup> groups, ProcessGroup group,
                          ZeroOptions options = {});
  // All parameters that `core` trains, over its group.
  ZeroRedundancyOptimizer(DdpCore& core, ShardFactory optimizer, ZeroOptions options = {});
  template <class Ddp>
  requires requires(Ddp& ddp) { ddp->core(); }
  ZeroRedundancyOptimizer(Ddp& ddp, ShardFactory optimizer, ZeroOptions options = {})
      : ZeroRedundancyOptimizer(ddp->core(), std::move(optimizer), options) {}
  ~ZeroRedundancyOptimizer() override;

  // Collective. Earlier parameters stay with their owners.
  void add_group(ZeroGroup group);

  // Collective. Steps this rank's parameters that have a gradient, then every rank gets all
  // parameters. REQUIRES: gradients are equal on all ranks, as after backward(). Throws
  // ConfigError inside of join() of the model it was made for: ranks without further input
  // do not call it.
  void step();
  void zero_grad(bool set_to_none = true) const;

  OptimizerState shard_state() const override;
  std::function<void()> load_shards(const std::vector<OptimizerState>& shards,
                                    int saved_ranks) override;
  OptimizerState consolidate(int to = 0) const override;
  void load_consolidated(const OptimizerState& whole) override;
  void set_lr(double lr) override;
  void set_lr(size_t group, double lr) override;
  double lr(size_t group = 0) const override;

  const ProcessGroup& group() const { return group_; }
  // The rank that steps a parameter; -1 for a tensor that is none of parameters().
  int owner(const at::Tensor& parameter) const;
  // The number of elements that a rank owns.
  int64_t share(int rank) const;
  // This rank's optimizer of a group, until the next load, add_group or assign.
  ShardOptimizer& local(size_t group = 0) { return *groups_.at(group).local; }
  // The fingerprints of all groups, readable; equal on all ranks.
  std::string fingerprint() const;
  // The parameters of all groups, in the order given.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // ---- for hooks
  // Steps the parameter if it is this rank's. Called by one thread at a time.
  void step_own(const at::Tensor& parameter, const at::Tensor& gradient);
  // Collective. Assigns the parameters to these owners, in the order of parameters(), with
  // their state.
  void assign(const std::vector<int>& owners);

 private:
  struct Group {
    NamedParameters parameters;
    ShardFactory factory;
    std::shared_ptr<ShardOptimizer> local = nullptr;
  };
  struct Index {
    size_t index = 0;  // in parameters_
    size_t group = 0;
  };
  struct Sender;
  using Locals = std::vector<std::shared_ptr<ShardOptimizer>>;

  void add_unchecked(ZeroGroup group);
  void check_same() const;
  NamedParameters share_of(const Group& group, const std::vector<int>& owners) const;
  // Makes optimizers, with this state, for this rank's share under `owners`.
  Locals load_into_new(const OptimizerState& state, const std::vector<int>& owners) const;
  void adopt(Locals locals, std::vector<int> owners);
  void prepare_sender();

  std::vector<Group> groups_;
  const ProcessGroup group_;
  const ZeroOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<int> owners_;  // by index
  std::unordered_map<const c10::TensorImpl*, Index> places_;
  std::unique_ptr<Sender> sender_;  // null: not made yet
  DdpCore::ModelHandle model_;      // empty if not known
};

// ---- ZeRO in the backward pass ----------------------------------------------------------
//
// The state of the optimizer is divided among the ranks, and parameters change while
// gradients still arrive, from the first iteration on, on every backend.
//
//   auto zero = std::make_shared<brigade::optim::ZeroRedundancyOptimizer>(ddp, "adam");
//   ddp->set_hook(brigade::optim::hook_with_zero_step_interleaved(
//       brigade::make_hook("fp16"), ddp, zero));
// or, with no more bytes than an all-reduce sends:
//   auto zero = brigade::optim::apply_zero_in_backward(ddp, "adam:lr=0.001");

// Both hooks below reduce as `hook` does, step this rank's parameters, and then give every
// rank all parameters. Gradients are still there after backward(); do not call
// zero->step(). Nothing steps inside of no_sync; parameters that no rank used, or that
// `zero` does not have, do not change. The state is the inner hook's; zero_part saves the
// state of `zero`.
//
// `shard_buckets` true: parameters keep the owners that `zero` chose. False: each bucket
// has one owner, so that one broadcast is enough for it, but shares may be uneven; when the
// buckets are rebuilt after the first iteration, state moves.
//
// To be called on all ranks. Throws ConfigError if `zero` has parameters that the model
// does not train, or another number of ranks.

// Steps when the last bucket is reduced, with one broadcast for each owner. Not with
// skip_all_reduce_unused_params, where the last bucket may not come.
BRIGADE_API std::shared_ptr<Hook> hook_with_zero_step(
    std::shared_ptr<Hook> hook, DdpCore& core,
    std::shared_ptr<ZeroRedundancyOptimizer> zero, bool shard_buckets = false);
// Steps each bucket's parameters as soon as it is reduced.
BRIGADE_API std::shared_ptr<Hook> hook_with_zero_step_interleaved(
    std::shared_ptr<Hook> hook, DdpCore& core,
    std::shared_ptr<ZeroRedundancyOptimizer> zero, bool shard_buckets = false);

template <class Ddp>
requires requires(Ddp& ddp) { ddp->core(); }
std::shared_ptr<Hook> hook_with_zero_step(std::shared_ptr<Hook> hook, Ddp& ddp,
                                          std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                          bool shard_buckets = false) {
  return hook_with_zero_step(std::move(hook), ddp->core(), std::move(zero), shard_buckets);
}
template <class Ddp>
requires requires(Ddp& ddp) { ddp->core(); }
std::shared_ptr<Hook> hook_with_zero_step_interleaved(
    std::shared_ptr<Hook> hook, Ddp& ddp, std::shared_ptr<ZeroRedundancyOptimizer> zero,
    bool shard_buckets = false) {
  return hook_with_zero_step_interleaved(std::move(hook), ddp->core(), std::move(zero),
                                         shard_buckets);
}

// The hook "zero" reduce-scatters a bucket, steps this rank's shard, and all-gathers the
// parameters. Every rank owns 1/ranks of every parameter, whatever bucket it is in, so no
// state moves when buckets change. The optimizer sees flat shards of parameters, so its
// step of an element must depend on that element only; this holds for all of
// brigade::optim.
class BRIGADE_API ZeroHook : public Hook, public ShardedOptimizer {
 public:
  std::string name() const override { return "zero"; }
};

// Attaches the hook "zero" to the model, instead of any other hook, and returns it. When
// backward() returns, the parameters have stepped and their gradients are none. With
// no_sync gradients accumulate, and the pass that synchronises steps with the sum.
// Collective, between iterations. Throws ConfigError for parameters that the hook can't
// divide (sparse gradients, not dense in memory) and unless the groups have exactly the
// parameters that the model trains. ddp->core().set_in_backward(nullptr) detaches it.
BRIGADE_API std::shared_ptr<ZeroHook> apply_zero_in_backward(DdpCore& core,
                                                             std::vector<ZeroGroup> groups);
BRIGADE_API std::shared_ptr<ZeroHook> apply_zero_in_backward(DdpCore& core,
                                                             ShardFactory optimizer);
template <class Ddp, class What>
requires requires(Ddp& ddp) { ddp->core(); }
std::shared_ptr<ZeroHook> apply_zero_in_backward(Ddp& ddp, What what) {
  return apply_zero_in_backward(ddp->core(), std::move(what));
}

}  // namespace brigade::optim
