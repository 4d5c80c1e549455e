// Hooks by name, and by PyTorch's DDPCommHookType.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/export.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

enum class DDPCommHookType {
  ALLREDUCE,
  FP16_COMPRESS,
  BF16_COMPRESS,
  QUANTIZE_PER_TENSOR,
  QUANTIZE_PER_CHANNEL,
  POWER_SGD,
  POWER_SGD_RANK2,
  BATCHED_POWER_SGD,
  BATCHED_POWER_SGD_RANK2,
  NOOP,
};

// One row of the table of hooks; everything that offers or lists hooks reads it.
struct HookEntry {
  std::string_view name;
  std::string_view summary;
  // Names of its options, in the order in which help shows them.
  std::vector<std::string_view> options;
  // What the contract tests hold it to, as a relative error of the mean of one step
  // (Frobenius norm); negative: the result is not a mean.
  double tolerance;
  // Whether one step may be further off because the rest is fed back in the next.
  bool error_feedback;
};
BRIGADE_API std::span<const HookEntry> hook_table();

// "fp16", "powersgd:rank=2,start=10", "fp16+powersgd": a name with options, and wrappers
// (fp16, bf16, node) before it, each followed by '+'. Throws ConfigError that lists what is
// known and, for a near miss, the likely one.
BRIGADE_API std::shared_ptr<Hook> make_hook(std::string_view spec);
BRIGADE_API std::shared_ptr<Hook> make_hook(DDPCommHookType type);
// The spec that make_hook(type) stands for, e.g. "powersgd:rank=2".
BRIGADE_API std::string_view hook_spec(DDPCommHookType type);

// Any inner hook on a bucket cast to half, its result cast back.
BRIGADE_API std::shared_ptr<Hook> fp16_compress_wrapper(std::shared_ptr<Hook> inner);
BRIGADE_API std::shared_ptr<Hook> bf16_compress_wrapper(std::shared_ptr<Hook> inner);

// Any inner hook between hosts only: the ranks of a host add up exactly, the first of each
// takes the sum to the inner hook, among the first ranks of all hosts, and gives its result
// to the others. Where no host has several ranks, or there is but one host, it is the inner
// hook. State is the first ranks' alone: a state that was saved under one division into
// hosts can be loaded under the same, or, by combine_states(), under any. REQUIRES: the
// inner hook awaits 12 collectives at most, one after the other.
BRIGADE_API std::shared_ptr<Hook> node_wrapper(std::shared_ptr<Hook> inner);

// PyTorch's way to set a hook. `state`: the group to reduce over; none: the model's own.
template <class Ddp>
void register_ddp_comm_hook(DDPCommHookType type, Ddp& ddp, ProcessGroup state = {}) {
  ddp->set_hook(make_hook(type), std::move(state));
}

}  // namespace brigade
