// SPDX-License-Identifier: BSD-3-Clause
// ZeRO in the backward pass: the state of the optimizer is spread over the ranks, and
// parameters change while gradients still arrive, from the first iteration on. On every
// backend.
//
//   auto zero = std::make_shared<brigade::optim::ZeroRedundancyOptimizer>(ddp, "adam");
//   ddp->set_hook(brigade::optim::hook_with_zero_step_interleaved(
//       brigade::make_hook("fp16"), ddp, zero));
// or, which moves no more than an all-reduce does:
//   auto zero = brigade::optim::apply_zero_in_backward(ddp, "adam:lr=0.001");
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "brigade/export.h"
#include "brigade/hook.h"
#include "brigade/zero/zero.h"

namespace brigade::optim {

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
