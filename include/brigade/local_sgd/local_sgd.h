// SPDX-License-Identifier: BSD-3-Clause
// Local SGD: ranks train apart and meet every so many steps. One object owns all that
// takes: the hook that stops averaging gradients over all ranks, the averager that brings
// parameters together, and the one warm-up of both.
//
//   brigade::optim::LocalSGD local(ddp, optimizer, {.warmup_steps = 100, .period = 16});
//   for (…) {
//     ddp->zero_grad();
//     loss(ddp->forward(data), target).backward();
//     local.step();  // instead of optimizer.step()
//   }
//   local.finish();
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/export.h"
#include "brigade/local_sgd/inner_step.h"
#include "brigade/local_sgd/model_averager.h"
#include "brigade/local_sgd/post_local_sgd.h"

namespace brigade::optim {

// Equal on all ranks. Either `period` or `levels` must be given.
struct LocalSGDOptions {
  // ---- changes the result
  // Steps at the beginning in which gradients are averaged over all ranks; 0 or more.
  int64_t warmup_steps = 0;
  // Afterwards: steps from one mean of the parameters over all ranks to the next; 1 or
  // more.
  int64_t period = 0;
  // Instead of `period`: HierarchicalModelAverager's.
  std::vector<AveragingLevel> levels = {};
  // The ranks that go on averaging gradients among themselves. Empty: those of one host.
  ProcessGroup subgroup = {};
  // False: they do not, every rank is for itself.
  bool post_local_gradient_allreduce = true;
};

// Must live as long as the model is trained, and so must the optimizer. Between two means
// the ranks' parameters differ: finish() before they are saved or judged. Buffers are still
// rank 0's before each forward pass, over all ranks, if the model has any: with
// DdpOptions::broadcast_buffers = false they stay local. Not inside of join(): the first
// pass there throws.
class BRIGADE_API LocalSGD {
 public:
  // Collective, between two iterations. The hook that the model has now, or all-reduce,
  // goes on averaging its gradients, among fewer ranks after the warm-up. Throws
  // ConfigError for bad options, MismatchError if they differ between ranks.
  template <class T>
  LocalSGD(DdpCore& core, T& optimizer, LocalSGDOptions options)
      : LocalSGD(inner_step(optimizer, core.parameters()), core, std::move(options)) {}
  template <class Ddp, class T>
  requires requires(Ddp& ddp) { ddp->core(); }
  LocalSGD(Ddp& ddp, T& optimizer, LocalSGDOptions options)
      : LocalSGD(ddp->core(), optimizer, std::move(options)) {}
  // For optimizers that step in the backward pass: step() only averages.
  LocalSGD(DdpCore& core, LocalSGDOptions options)
      : LocalSGD(InnerStep(), core, std::move(options)) {}
  ~LocalSGD();
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  // Collective, after each backward pass that synchronises: steps the optimizer, then
  // averages the parameters if it is time. Throws Error if the model has another hook
  // meanwhile.
  void step();
  // Collective. All ranks get the mean of the parameters, now.
  void finish();

  // Steps so far, and whether the next one is local.
  int64_t steps() const;
  bool is_local() const;
  ModelAverager& averager();
  PostLocalSGDHook& hook();
  // By this rank since construction: for gradients and for parameters.
  int64_t bytes_sent() const;

  // For checkpoints: on all ranks the same, 0 or more.
  void set_steps(int64_t steps);

 private:
  struct State;
  LocalSGD(InnerStep step, DdpCore& core, LocalSGDOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace brigade::optim
