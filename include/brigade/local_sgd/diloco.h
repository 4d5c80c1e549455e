// SPDX-License-Identifier: BSD-3-Clause
// DiLoCo: ranks train apart for many steps, with any optimizer, and then agree on one step
// of an outer optimizer (Douillard et al.: DiLoCo, 2023; Streaming DiLoCo, 2025). Sends a
// small part of what averaging gradients does: for ranks that are far from each other.
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
// to d, and the *outer* step is Nesterov's: v = μ v + d, g = g - η (d + μ v), θ = g.
// A rank may stand for several: give each rank of a DistributedDataParallel group the same
// data-parallel model, and DiLoCo the group of one rank from each.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/export.h"
#include "brigade/hook.h"
#include "brigade/local_sgd/inner_step.h"
#include "brigade/optim/optimizer.h"
#include "brigade/process_group.h"

namespace torch::nn {
class Module;
}

namespace brigade::optim {

// Equal on all ranks.
struct DiLoCoOptions {
  // ---- changes the result
  // Inner steps between two exchanges of a parameter, H; 1 or more, usually 100 to 500.
  int64_t period = 100;
  // η; more than 0.
  double outer_lr = 0.7;
  // μ; 0 to less than 1. 0 keeps no velocity.
  double outer_momentum = 0.9;
  // Parts of the model that are exchanged at different times, the f-th at step f H / P of
  // each period: the same bytes in smaller portions. 1 to `period`, and to the number of
  // parameters.
  int64_t fragments = 1;
  // Inner steps from the start of an exchange to its use, τ: it travels meanwhile. 0 to
  // less than `period`.
  int64_t delay = 0;
  // How much of its own parameters a rank keeps, α: θ = (1 - α) g + α θ. 0 to less than 1;
  // with a delay 0.5 keeps some of what was learned meanwhile.
  double mixing = 0;
  // How differences are averaged: make_hook("int8"). Empty: all-reduce.
  std::shared_ptr<Hook> hook = {};
  // Rank 0's parameters replace those of the others at construction. False: the caller has
  // made them equal.
  bool init_sync = true;

  // ---- changes only speed or memory
  // Size at which a message is closed, in MiB; more than 0.
  double bucket_cap_mb = 25;
};

// Not thread-safe: one training loop drives it. The model and the optimizer must outlive
// it. Every function that says "collective" is called by all ranks, in the same order.
class BRIGADE_API DiLoCo {
 public:
  // Collective. Of the model's parameters, those that need gradients. Throws ConfigError
  // for bad options, MismatchError if options or models differ between ranks.
  template <class T>
  DiLoCo(torch::nn::Module& model, T& optimizer, ProcessGroup group,
         DiLoCoOptions options = {})
      : DiLoCo(trained_parameters(model), optimizer, std::move(group), std::move(options)) {
  }
  template <class T>
  DiLoCo(NamedParameters parameters, T& optimizer, ProcessGroup group,
         DiLoCoOptions options = {})
      : DiLoCo(inner_step(optimizer, tensors_of(parameters)), parameters, std::move(group),
               std::move(options)) {}
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Collective. The inner step, and what is due after it.
  void step();
  // Collective. An exchange of everything, now: all ranks get the same parameters. At the
  // end of training, before they are saved or judged.
  void finish();

  // Inner steps so far.
  int64_t steps() const;
  // Exchanges whose mean was not finite, because a rank's parameters were not. They change
  // no global parameter, and every rank starts again from these; each is warned about.
  int64_t rejected() const;
  // Of the exchanges; a step there is one exchange of one fragment.
  HookStats stats() const;

  // As a checkpoint stores it; diloco_parts (brigade/checkpoint.h) does. Equal on all
  // ranks: global parameters, velocity, steps, means that wait for their use. Waits for
  // what is under way.
  OptimizerState state();
  // Of this rank: its parameters, and what the hook keeps.
  HookState rank_state();
  // Look first, throw ConfigError where something does not fit; what they return makes the
  // change. Several rank states, of another number of ranks, are averaged.
  std::function<void()> read_state(OptimizerState state);
  std::function<void()> read_rank_state(std::vector<HookState> states);

 private:
  struct State;
  DiLoCo(InnerStep step, const NamedParameters& parameters, ProcessGroup group,
         DiLoCoOptions options);
  static NamedParameters trained_parameters(torch::nn::Module& model);
  static std::vector<at::Tensor> tensors_of(const NamedParameters& parameters);
  std::unique_ptr<State> state_;
};

}  // namespace brigade::optim
