// SPDX-License-Identifier: BSD-3-Clause
// Training with less communication: ranks train locally and average their parameters from
// time to time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/compose_hooks.h"
#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/optim.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- Model averagers --------------------------------------------------------------------
//
// A model averager averages the parameters of ranks that train locally, every so many
// steps.
//
//   brigade::PeriodicModelAverager averager(group, {.period = 16, .warmup_steps = 100});
//   for (…) {
//     loss.backward();
//     optimizer.step();
//     averager.average_parameters(net->parameters());
//   }
//
// LocalSGD, below, also averages gradients among some of the ranks.

// Collective. Every parameter becomes its mean over the group, with the same bits on all
// ranks. Half types are averaged in float32. Returns the bytes that this rank sent. Throws
// ConfigError for a parameter that is not a dense floating-point tensor.
BRIGADE_API int64_t average_parameters(const std::vector<at::Tensor>& parameters,
                                       const ProcessGroup& group);

// Counts steps and decides when, and over which group, parameters are averaged. All ranks
// pass the same parameters, with or without gradients.
class BRIGADE_API ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  // Collective, after each step of the optimizer. Averages if it is due at this step, and
  // counts the step. Returns whether it averaged.
  bool average_parameters(const std::vector<at::Tensor>& parameters);
  // Collective. Averages over all ranks at once, and counts no step. For the end of
  // training, before parameters are saved or evaluated.
  void average_now(const std::vector<at::Tensor>& parameters);

  // The number of steps so far; a checkpoint must keep it.
  int64_t step() const { return step_; }
  // Must be the same on all ranks, and 0 or more (ConfigError).
  void set_step(int64_t step);
  int64_t warmup_steps() const { return warmup_steps_; }
  const ProcessGroup& group() const { return group_; }
  // Bytes sent by this rank since construction.
  int64_t bytes_sent() const { return bytes_sent_; }
  // Name and options, readable.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  // Collective. Throws ConfigError for a bad warm-up, and MismatchError, on every rank, if
  // the fingerprints differ.
  ModelAverager(ProcessGroup group, int64_t warmup_steps, std::string fingerprint);
  // The group to average over at this step, which is past the warm-up; empty: none.
  virtual ProcessGroup due(int64_t step) const = 0;

 private:
  const ProcessGroup group_;
  const int64_t warmup_steps_;
  const std::string fingerprint_;
  int64_t step_ = 0;
  int64_t bytes_sent_ = 0;
};

struct PeriodicModelAveragerOptions {
  // Steps from one mean to the next; 1 or more. 1 logs a warning: it sends as much as
  // averaging gradients would, without overlap.
  int64_t period = 1;
  // Steps before the first mean; 0 or more. Meanwhile gradients should be averaged.
  int64_t warmup_steps = 0;
};

// Averages over all ranks at step warmup_steps (steps count from 0), and then at every
// period-th.
class BRIGADE_API PeriodicModelAverager : public ModelAverager {
 public:
  // Collective; ModelAverager describes its errors.
  PeriodicModelAverager(ProcessGroup group, PeriodicModelAveragerOptions options);

 protected:
  ProcessGroup due(int64_t step) const override;

 private:
  const int64_t period_;
};

// Averages over groups of `group_size` consecutive ranks at every period-th step.
struct AveragingLevel {
  int64_t period = 1;
  int group_size = 1;
};

struct HierarchicalModelAveragerOptions {
  // Periods ascend; group sizes do not descend, divide the number of ranks, and the last is
  // that number.
  std::vector<AveragingLevel> levels = {};
  // Steps before the first mean; 0 or more.
  int64_t warmup_steps = 0;
};

// Averages at most once a step: at the level with the largest period that divides the step.
// As in PyTorch, steps count from 0 with the warm-up; so a single level equals
// PeriodicModelAverager if its period divides the warm-up.
class BRIGADE_API HierarchicalModelAverager : public ModelAverager {
 public:
  // Collective; ModelAverager describes its errors.
  HierarchicalModelAverager(ProcessGroup group, HierarchicalModelAveragerOptions options);

 protected:
  ProcessGroup due(int64_t step) const override;

 private:
  const std::vector<AveragingLevel> levels_;
  std::vector<ProcessGroup> groups_;
};

}  // namespace brigade

namespace brigade::optim {

// ---- Inner steps ------------------------------------------------------------------------
//
// An inner step is one step of an optimizer of any kind.

using InnerStep = std::function<void()>;

namespace detail {
BRIGADE_API InnerStep step_each(
    std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step_param,
    std::vector<at::Tensor> parameters);
}

// An optimizer of torch::optim (or any type with step()) steps its own parameters; one of
// brigade::optim (or any type with step_param) steps those of `parameters` that have a
// gradient. `optimizer` must outlive the result.
template <class T>
InnerStep inner_step(T& optimizer, std::vector<at::Tensor> parameters) {
  constexpr bool steps_each = FunctionalOptimizer<T>;
  constexpr bool steps_all = requires { optimizer.step(); };
  static_assert(steps_each || steps_all,
                "this is no optimizer: it has neither step() nor step_param(const "
                "at::Tensor& parameter, const at::Tensor& gradient)");
  if constexpr (steps_all) {
    return [&optimizer] { optimizer.step(); };
  } else if constexpr (steps_each) {
    return detail::step_each(
        [&optimizer](const at::Tensor& parameter, const at::Tensor& gradient) {
          optimizer.step_param(parameter, gradient);
        },
        std::move(parameters));
  }
}

}  // namespace brigade::optim

namespace brigade {

// ---- Post-local SGD ---------------------------------------------------------------------
//
// In post-local SGD gradients are averaged over all ranks at first, then only in subgroups
// (Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020).
//
// From then on the subgroups' parameters differ, and something must average them.
// brigade::optim::LocalSGD, below, owns this hook and an averager; use it unless you have a
// reason not to. The hook is not in the table of hooks, where no row lets replicas differ
// for good.

// The names are PyTorch's.
struct PostLocalSGDOptions {
  // ---- changes the result
  // The ranks to average over before the start. Empty: those of the model's hook.
  ProcessGroup group = {};
  // The ranks to average over from the start on. Empty: the ranks of one host.
  ProcessGroup subgroup = {};
  // The start: the number of backward passes that average over all; 0 or more.
  int64_t start_localSGD_iter = 0;
  // False: from the start on, gradients are not averaged.
  bool post_local_gradient_allreduce = true;
};

class BRIGADE_API PostLocalSGDHook : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  // The number of backward passes so far; from start_localSGD_iter on they are local.
  virtual int64_t iteration() const = 0;
  // To be called between two passes, the same on all ranks; 0 or more.
  virtual void set_iteration(int64_t iteration) = 0;
};

// `inner` averages, over all ranks or a subgroup; empty: all-reduce. Its state is part of
// this hook's. Throws ConfigError for options out of range.
BRIGADE_API std::shared_ptr<PostLocalSGDHook> make_post_local_sgd(
    PostLocalSGDOptions options = {}, std::shared_ptr<Hook> inner = {});

}  // namespace brigade

namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace brigade::optim {

// ---- PostLocalSGDOptimizer --------------------------------------------------------------
//
// PyTorch's PostLocalSGDOptimizer steps an optimizer, then averages the parameters. It
// needs a PostLocalSGDHook with a start equal to the averager's warm-up; LocalSGD, below,
// has all of them in one.

// Give optimizer(), an optimizer of torch::optim, to a learning-rate scheduler.
class BRIGADE_API PostLocalSGDOptimizer {
 public:
  // Throws ConfigError if one of them is null.
  PostLocalSGDOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                        std::shared_ptr<ModelAverager> averager);

  // Collective if the averager averages at this step. Returns the optimizer's result.
  at::Tensor step(std::function<at::Tensor()> closure = {});
  // Works with bucket views too.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  ModelAverager& averager() { return *averager_; }

  // Saves the optimizer and the averager's step. A file without that step, as the optimizer
  // alone writes it, loads with a warning, and the step is 0. torch::save and torch::load
  // work too.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ModelAverager> averager_;
};

BRIGADE_API torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const PostLocalSGDOptimizer& optimizer);
BRIGADE_API torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, PostLocalSGDOptimizer& optimizer);

// ---- LocalSGD ---------------------------------------------------------------------------
//
// In local SGD ranks train locally and average their parameters every so many steps. A
// LocalSGD owns the hook that stops averaging gradients over all ranks, the averager of the
// parameters, and the warm-up of both.
//
//   brigade::optim::LocalSGD local(ddp, optimizer, {.warmup_steps = 100, .period = 16});
//   for (…) {
//     ddp->zero_grad();
//     loss(ddp->forward(data), target).backward();
//     local.step();  // instead of optimizer.step()
//   }
//   local.finish();

// Equal on all ranks. Either `period` or `levels` must be given.
struct LocalSGDOptions {
  // ---- changes the result
  // Steps at the beginning in which gradients are averaged over all ranks; 0 or more.
  int64_t warmup_steps = 0;
  // Steps from one mean of the parameters over all ranks to the next, after the warm-up; 1
  // or more.
  int64_t period = 0;
  // Instead of `period`: HierarchicalModelAverager's.
  std::vector<AveragingLevel> levels = {};
  // The ranks that average gradients among themselves after the warm-up. Empty: those of
  // one host.
  ProcessGroup subgroup = {};
  // False: after the warm-up, no gradients are averaged.
  bool post_local_gradient_allreduce = true;
};

// Must live as long as the model is trained, and so must the optimizer. Between two means
// the ranks' parameters differ: call finish() before they are saved or evaluated. Rank 0
// still broadcasts its buffers before each forward pass, unless
// DdpOptions::broadcast_buffers is false. Not inside of join(): the first pass there
// throws.
class BRIGADE_API LocalSGD {
 public:
  // Collective, between two iterations. The model's present hook, or all-reduce, averages
  // its gradients, among fewer ranks after the warm-up. Throws ConfigError for bad options,
  // MismatchError if they differ between ranks.
  template <class T>
  LocalSGD(DdpCore& core, T& optimizer, LocalSGDOptions options)
      : LocalSGD(Inner{inner_step(optimizer, core.parameters())}, core,
                 std::move(options)) {}
  template <class Ddp, class T>
  requires requires(Ddp& ddp) { ddp->core(); }
  LocalSGD(Ddp& ddp, T& optimizer, LocalSGDOptions options)
      : LocalSGD(ddp->core(), optimizer, std::move(options)) {}
  // For optimizers that step in the backward pass: step() only averages.
  LocalSGD(DdpCore& core, LocalSGDOptions options)
      : LocalSGD(Inner{}, core, std::move(options)) {}
  ~LocalSGD();
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  // Collective, after each backward pass that synchronises: steps the optimizer, then
  // averages the parameters if that is due. Throws Error if the model has been given
  // another hook.
  void step();
  // Collective. All ranks get the mean of the parameters.
  void finish();

  // The number of steps so far, and whether the next one is local.
  int64_t steps() const;
  bool is_local() const;
  ModelAverager& averager();
  PostLocalSGDHook& hook();
  // Bytes sent by this rank since construction, for gradients and for parameters.
  int64_t bytes_sent() const;

  // For checkpoints. Must be the same on all ranks; 0 or more.
  void set_steps(int64_t steps);

 private:
  struct State;
  // A type of its own: any model can be converted to a std::function.
  struct Inner {
    InnerStep step = {};
  };
  LocalSGD(Inner inner, DdpCore& core, LocalSGDOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace brigade::optim

namespace torch::nn {
class Module;
}

namespace brigade::optim {

// ---- DiLoCo -----------------------------------------------------------------------------
//
// In DiLoCo ranks train locally for many steps, with any optimizer, and then make one
// common step of an outer optimizer (Douillard et al.: DiLoCo, 2023; Streaming DiLoCo,
// 2025). It sends a small fraction of the bytes of averaging gradients: for slow links
// between ranks.
//
//   brigade::optim::DiLoCo diloco(*net, optimizer, group, {.period = 100});
//   for (…) {
//     net->zero_grad();
//     loss(net->forward(data), target).backward();
//     diloco.step();  // instead of optimizer.step()
//   }
//   diloco.finish();
//
// Vocabulary. The *global* parameters g are equal on all ranks; a rank's own, θ, move away
// from them. After `period` *inner* steps the *difference* g - θ is averaged over the ranks
// to d, and the *outer* step is Nesterov's: v = μ v + d, g = g - η (d + μ v), θ = g. A rank
// may stand for several: wrap the model in DistributedDataParallel over each group of near
// ranks, and give DiLoCo a group with one rank from each.

// Equal on all ranks.
struct DiLoCoOptions {
  // ---- changes the result
  // Inner steps between two exchanges of a parameter, H; 1 or more, usually 100 to 500.
  int64_t period = 100;
  // η; more than 0.
  double outer_lr = 0.7;
  // μ; 0 to less than 1. 0 keeps no velocity.
  double outer_momentum = 0.9;
  // P, the number of fragments of the model that are exchanged at different times, the f-th
  // at step f H / P of each period: the same bytes in smaller portions. 1 to `period`, and
  // to the number of parameters.
  int64_t fragments = 1;
  // Inner steps from the start of an exchange to the use of its result, τ. 0 to less than
  // `period`.
  int64_t delay = 0;
  // How much of its own parameters a rank keeps, α: θ = (1 - α) g + α θ. 0 to less than 1;
  // with a delay, 0.5 keeps some of the progress made meanwhile.
  double mixing = 0;
  // Averages the differences: make_hook("int8"). Empty: all-reduce.
  std::shared_ptr<Hook> hook = {};
  // Rank 0's parameters replace those of the others at construction. False: they are equal
  // already.
  bool init_sync = true;

  // ---- changes only speed or memory
  // Size at which a message is closed, in MiB; more than 0.
  double bucket_cap_mb = 25;
};

// Not thread-safe: one training loop drives it. The model and the optimizer must outlive
// it. All ranks call the "collective" functions, in the same order.
class BRIGADE_API DiLoCo {
 public:
  // Collective. Takes the model's parameters that need gradients. Throws ConfigError for
  // bad options, MismatchError if options or models differ between ranks.
  template <class T>
  DiLoCo(torch::nn::Module& model, T& optimizer, ProcessGroup group,
         DiLoCoOptions options = {})
      : DiLoCo(trained_parameters(model), optimizer, std::move(group), std::move(options)) {
  }
  template <class T>
  DiLoCo(NamedParameters parameters, T& optimizer, ProcessGroup group,
         DiLoCoOptions options = {})
      : DiLoCo(Inner{inner_step(optimizer, tensors_of(parameters))}, parameters,
               std::move(group), std::move(options)) {}
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Collective. Makes the inner step, and the exchange that is due after it.
  void step();
  // Collective. Exchanges everything: all ranks get the same parameters. To be called at
  // the end of training, before they are saved or evaluated.
  void finish();

  // The number of inner steps so far.
  int64_t steps() const;
  // Exchanges whose mean was not finite, because a rank's parameters were not. They change
  // no global parameter, every rank restarts from these, and a warning is logged.
  int64_t rejected() const;
  // Statistics of the exchanges; a step there is one exchange of one fragment.
  HookStats stats() const;

  // For checkpoints, as diloco_parts (brigade/checkpoint.h) stores it. Equal on all ranks:
  // global parameters, velocity, steps, means not used yet. Waits for exchanges under way.
  OptimizerState state();
  // This rank's parameters, and its hook's state.
  HookState rank_state();
  // These check first, and throw ConfigError where something does not fit; the functions
  // they return make the change. If another number of ranks saved them, rank states are
  // averaged.
  std::function<void()> read_state(OptimizerState state);
  std::function<void()> read_rank_state(std::vector<HookState> states);

 private:
  struct State;
  // A type of its own: any model can be converted to a std::function.
  struct Inner {
    InnerStep step = {};
  };
  DiLoCo(Inner inner, const NamedParameters& parameters, ProcessGroup group,
         DiLoCoOptions options);
  static NamedParameters trained_parameters(torch::nn::Module& model);
  static std::vector<at::Tensor> tensors_of(const NamedParameters& parameters);
  std::unique_ptr<State> state_;
};

}  // namespace brigade::optim
