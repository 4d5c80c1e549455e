// SPDX-License-Identifier: BSD-3-Clause
// ZeRO: each rank keeps its share of the optimizer's state.
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

// ---- zero -------------------------------------------------------------------------------
//
// ZeRO: each rank keeps the optimizer's state of its share of the parameters, steps that
// share, and hands the new values to all others. Training is the same as with the optimizer
// on every rank; its state takes 1/ranks of the memory.
//
//   brigade::optim::ZeroRedundancyOptimizer zero(ddp, "adam:lr=0.001");
//   loss(ddp->forward(data), target).backward();
//   zero.step();
//
// brigade/zero.h steps in the backward pass instead.

// What steps one rank's share of a group of parameters.
class BRIGADE_API ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // By one thread at a time, with gradients disabled. The gradient is left as it is.
  virtual void step_param(const at::Tensor& parameter, const at::Tensor& gradient) = 0;
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  // As in Optimizer: shared tensors and options, by the names given; loading throws
  // ConfigError, and changes nothing, where something does not fit.
  virtual OptimizerState state(const NamedParameters& parameters) const = 0;
  virtual void load_state(const OptimizerState& state,
                          const NamedParameters& parameters) = 0;
  // Name and options, readable.
  virtual std::string fingerprint() const = 0;
};

// How a rank's optimizer is made: from text, as make_optimizer takes it; or by a function
// of the share's parameters that gives an optimizer of brigade::optim or of torch::optim.
// The tensors that the function gets share memory with the parameters, and are no others
// than those the optimizer will step; there may be none of them. It is called again when
// the share changes and when state is loaded, and must give the same kind each time.
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

// Parameters that step alike. Names must differ in all groups together.
struct ZeroGroup {
  NamedParameters parameters = {};
  ShardFactory optimizer;
};

struct ZeroOptions {
  // ---- changes only speed or memory ----

  // The parameters become views into one flat tensor for each owner, which is what step()
  // broadcasts: no copies there. Whoever holds on to a parameter's old memory (through
  // data_ptr() or detach()) no longer sees it change.
  bool parameters_as_bucket_view = false;
};

// An optimizer whose state is spread over the ranks; zero_part (brigade/checkpoint.h) saves
// any. Functions that say "collective" are called by all ranks of its group.
class BRIGADE_API ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;

  // Of this rank, for as many ranks as now. Tensors are shared, not copied.
  virtual OptimizerState shard_state() const = 0;
  // What `shards` of shard_state() hold for this rank: with as many ranks as saved them,
  // this rank's own is enough; otherwise all, by rank. Checks everything, changes nothing,
  // throws ConfigError where it does not fit. What it gives makes the change, on all ranks
  // together.
  virtual std::function<void()> load_shards(const std::vector<OptimizerState>& shards,
                                            int saved_ranks) = 0;

  // Collective. Everybody's state in one, on rank `to`, in host memory; the others get an
  // empty one. A key is "group.N/" and what the optimizer of that group calls it.
  virtual OptimizerState consolidate(int to = 0) const = 0;
  // Takes this rank's share of a consolidated state, of any number of ranks. All ranks load
  // the same.
  virtual void load_consolidated(const OptimizerState& whole) = 0;

  // In bytes, of the tensors kept on this rank.
  int64_t state_bytes() const;

  // From the next step on, on all ranks: of all groups, or of one.
  virtual void set_lr(double lr) = 0;
  virtual void set_lr(size_t group, double lr) = 0;
  virtual double lr(size_t group = 0) const = 0;
};

// Parameters are given out by size, the largest first, each to the rank that has least so
// far; a parameter is not divided. Not thread-safe.
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

  // Collective. What there is stays with its owners.
  void add_group(ZeroGroup group);

  // Collective. Steps this rank's parameters that have a gradient, then every rank gets
  // everyone's. REQUIRES: gradients that are equal on all ranks, as after backward().
  // Throws ConfigError inside of join() of the model it was made for: ranks that have no
  // more input do not come here.
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
  // The rank that steps a parameter; -1: not one of these.
  int owner(const at::Tensor& parameter) const;
  // How many elements a rank owns.
  int64_t share(int rank) const;
  // This rank's optimizer of a group, until the next load, add_group or assign.
  ShardOptimizer& local(size_t group = 0) { return *groups_.at(group).local; }
  // Of all groups, readable; equal on all ranks.
  std::string fingerprint() const;
  // In the order given, all groups.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // ---- for hooks
  // Steps the parameter if it is this rank's. By one thread at a time.
  void step_own(const at::Tensor& parameter, const at::Tensor& gradient);
  // Collective. Gives the parameters to these owners, in the order of parameters(); state
  // moves with them.
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
  // New optimizers, with this state, of what this rank has if parameters belong to
  // `owners`.
  Locals load_into_new(const OptimizerState& state, const std::vector<int>& owners) const;
  void adopt(Locals locals, std::vector<int> owners);
  void prepare_sender();

  std::vector<Group> groups_;
  const ProcessGroup group_;
  const ZeroOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<int> owners_;  // by index
  std::unordered_map<const c10::TensorImpl*, Index> places_;
  std::unique_ptr<Sender> sender_;  // null: to be made
  DdpCore::ModelHandle model_;      // if it is known
};

// ---- zero hooks -------------------------------------------------------------------------
//
// ZeRO in the backward pass: the state of the optimizer is spread over the ranks, and
// parameters change while gradients still arrive, from the first iteration on. On every
// backend.
//
//   auto zero = std::make_shared<brigade::optim::ZeroRedundancyOptimizer>(ddp, "adam");
//   ddp->set_hook(brigade::optim::hook_with_zero_step_interleaved(
//       brigade::make_hook("fp16"), ddp, zero));
// or, which moves no more than an all-reduce does:
//   auto zero = brigade::optim::apply_zero_in_backward(ddp, "adam:lr=0.001");

// What both hooks below do: reduce as `hook` does, step what this rank owns, then every
// rank gets everyone's parameters. Gradients are there after backward() as ever; do not
// call zero->step(). Nothing steps inside of no_sync; parameters that no rank used stay as
// they are, and so do those that `zero` does not have. The state is the inner hook's; that
// of `zero` is saved by zero_part.
//
// `shard_buckets` true: parameters belong to whom `zero` has given them. False: all of a
// bucket to one rank, so that one broadcast a bucket is enough, but shares may be uneven;
// when the buckets are made anew after the first iteration, state moves.
//
// On all ranks. Throws ConfigError where `zero` has parameters that the model does not
// train, or another number of ranks.

// Steps when the last bucket is reduced: one broadcast for each owner. Not with
// skip_all_reduce_unused_params, where the last bucket may not come.
BRIGADE_API std::shared_ptr<Hook> hook_with_zero_step(
    std::shared_ptr<Hook> hook, DdpCore& core,
    std::shared_ptr<ZeroRedundancyOptimizer> zero, bool shard_buckets = false);
// Steps each bucket as soon as it is reduced.
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

// The hook "zero": reduce-scatter of a bucket, a step of the shard, all-gather of the
// parameters. Every rank owns 1/ranks of every parameter, whatever bucket it is in, so
// nothing moves when buckets change; the optimizer sees flat shards of parameters, and must
// be one whose step of an element depends on that element only: all of brigade::optim are.
class BRIGADE_API ZeroHook : public Hook, public ShardedOptimizer {
 public:
  std::string name() const override { return "zero"; }
};

// Attaches the hook "zero" to the model, instead of any other hook, and gives it. When
// backward() returns, the parameters have stepped and their gradients are none. With
// no_sync gradients accumulate, and the pass that synchronises steps with the sum.
// Collective, between iterations. Throws ConfigError for parameters that the hook can't
// divide (sparse gradients, not dense in memory) and where a group lacks one that the model
// trains or has one that it does not. ddp->core().set_in_backward(nullptr) takes it off.
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
