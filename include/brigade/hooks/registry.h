// SPDX-License-Identifier: BSD-3-Clause
// Hooks by name, and by PyTorch's DDPCommHookType.
#pragma once
#include <cstdint>
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

// PyTorch's hook that does the same, for comparisons with it.
struct TorchHook {
  enum class Fails : std::uint8_t { never, over_gloo, over_gloo_with_buckets, always };
  // In torch.distributed.algorithms.ddp_comm_hooks: "default_hooks.fp16_compress_hook".
  // Empty: PyTorch has none.
  std::string_view name = {};
  // What one step of it may be off by, as HookEntry::tolerance; it adds up less exactly.
  double tolerance = 0;
  // Where it cannot be used, and how it fails there. `over_gloo_with_buckets`: over Gloo,
  // where there are two buckets or more.
  Fails fails = Fails::never;
  std::string_view why = {};
};

// One row of the table of hooks, which the command line, Python, the contract tests and the
// docs read.
struct HookEntry {
  std::string_view name;
  std::string_view summary;
  // Names of its options, in the order in which help shows them.
  std::vector<std::string_view> options = {};
  // What the contract tests hold it to, as a relative error of the mean of one step
  // (Frobenius norm); negative: the result is not a mean.
  double tolerance = 0;
  // Whether one step may be further off because the rest is fed back in the next.
  bool error_feedback = false;
  // Whether it is made of other hooks, which its options name: no way of its own to send
  // gradients.
  bool of_hooks = false;
  // How it is shown in a run of a hundred steps, where its defaults would hardly begin to
  // work: "powersgd:rank=2,start=10". Empty: by its name.
  std::string_view in_short_runs = {};
  // How `auto` tries it: "powersgd:rank=2,start=0". Empty: not unless it is told to.
  std::string_view as_candidate = {};
  TorchHook torch = {};
};
BRIGADE_API std::span<const HookEntry> hook_table();

// "fp16", "powersgd:rank=2,start=10", "fp16+powersgd": a name with options, and wrappers
// (fp16, bf16, node, small) before it, each followed by '+'. Options may stand in
// parentheses too, "powersgd(rank=2,start=10)", where one hook's text is a part of
// another's. Throws ConfigError that lists what is known and, for a near miss, the likely
// one.
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

// Vectors, and other gradients of fewer than `below` values, are averaged exactly, beside
// what `inner` makes of the rest. "small+int8" is text for it, and "int8:small=1024".
inline constexpr int64_t kSmall = 1024;
BRIGADE_API std::shared_ptr<Hook> exact_small_wrapper(std::shared_ptr<Hook> inner,
                                                      int64_t below = kSmall);

// PyTorch's way to set a hook. `state`: the group to reduce over; none: the model's own.
template <class Ddp>
void register_ddp_comm_hook(DDPCommHookType type, Ddp& ddp, ProcessGroup state = {}) {
  ddp->set_hook(make_hook(type), std::move(state));
}

}  // namespace brigade
