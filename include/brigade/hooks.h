// SPDX-License-Identifier: BSD-3-Clause
// The library's hooks: by name, by PyTorch's DDPCommHookType, by rules for parameters; and
// names for hooks of your own.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- Hooks by name ----------------------------------------------------------------------

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
  // As HookEntry::tolerance, for PyTorch's hook, which may sum less exactly.
  double tolerance = 0;
  // Where it cannot be used; `why` says how it fails there. `over_gloo_with_buckets`: over
  // Gloo, with two buckets or more.
  Fails fails = Fails::never;
  std::string_view why = {};
};

// One row of the table of hooks. The command line, Python, the contract tests and the docs
// read it.
struct HookEntry {
  std::string_view name;
  std::string_view summary;
  // Names of its options, in the order in which help shows them.
  std::vector<std::string_view> options = {};
  // The contract tests' bound on the relative error of one step's mean (Frobenius norm);
  // negative: the result is not a mean.
  double tolerance = 0;
  // Whether one step may be less exact because its error is fed back in the next.
  bool error_feedback = false;
  // Whether it is made of other hooks, named in its options, and sends nothing itself.
  bool of_hooks = false;
  // Its text for runs of a hundred steps, where its defaults would hardly begin to work:
  // "powersgd:rank=2,start=10". Empty: its name.
  std::string_view in_short_runs = {};
  // Its text as a candidate of `auto`: "powersgd:rank=2,start=0". Empty: it is none by
  // default.
  std::string_view as_candidate = {};
  TorchHook torch = {};
};
BRIGADE_API std::span<const HookEntry> hook_table();

// "fp16", "powersgd:rank=2,start=10", "fp16+powersgd": a name with options, and wrappers
// (fp16, bf16, node, small) before it, each followed by '+'. Options may also be in
// parentheses, "powersgd(rank=2,start=10)", where one hook's text is a part of another's.
// Throws ConfigError that lists what is known and, for a near miss, the likely one.
BRIGADE_API std::shared_ptr<Hook> make_hook(std::string_view spec);
BRIGADE_API std::shared_ptr<Hook> make_hook(DDPCommHookType type);
// The text of make_hook(type), e.g. "powersgd:rank=2".
BRIGADE_API std::string_view hook_spec(DDPCommHookType type);

// Casts buckets to half for any inner hook, and its result back.
BRIGADE_API std::shared_ptr<Hook> fp16_compress_wrapper(std::shared_ptr<Hook> inner);
BRIGADE_API std::shared_ptr<Hook> bf16_compress_wrapper(std::shared_ptr<Hook> inner);

// Runs the inner hook between hosts only: the ranks of a host sum exactly, the first rank
// of each host reduces the sum with the inner hook, among the first ranks of all hosts, and
// broadcasts the result on its host. If no host has several ranks, or there is one host
// only, every rank runs the inner hook. Only the first ranks have state: a saved state can
// be loaded under the same layout of hosts, or, by combine_states(), under any. REQUIRES:
// the inner hook awaits 12 collectives at most, one after the other.
BRIGADE_API std::shared_ptr<Hook> node_wrapper(std::shared_ptr<Hook> inner);

// Averages vectors, and other gradients of fewer than `below` values, exactly, while
// `inner` reduces the rest. As text: "small+int8", "int8:small=1024".
inline constexpr int64_t kSmall = 1024;
BRIGADE_API std::shared_ptr<Hook> exact_small_wrapper(std::shared_ptr<Hook> inner,
                                                      int64_t below = kSmall);

// PyTorch's way to set a hook. `state`: the group to reduce over; none: the model's own.
template <class Ddp>
void register_ddp_comm_hook(DDPCommHookType type, Ddp& ddp, ProcessGroup state = {}) {
  ddp->set_hook(make_hook(type), std::move(state));
}

// ---- Hooks of your own ------------------------------------------------------------------
//
// register_hook() names a hook of your own, so that it can be chosen by text:
// make_hook("mine:k=3"), behind a wrapper ("fp16+mine"), in a program's own options.

// The options after the name, "k=3,exact=1", by key.
using HookArguments = std::map<std::string, std::string>;
using HookFactory = std::function<std::shared_ptr<Hook>(const HookArguments& arguments)>;

// From now on make_hook() knows `name` in this process: register it on every rank, at the
// start of main(). The factory is called once for each hook; it throws ConfigError for
// unknown arguments. The hook's fingerprint should contain them: ranks compare it.
//
// The table of the library's own hooks does not change: bench and selftest do not list
// yours. Throws ConfigError when the name is taken, by the table too, or has characters
// other than letters, digits and '_'. Thread-safe.
BRIGADE_API void register_hook(std::string_view name, HookFactory factory);

// ---- Rules ------------------------------------------------------------------------------
//
// Rules choose a hook for each parameter, by its name.

struct Rule {
  // A pattern for names of parameters, "encoder.*.bias": '*' stands for any text, also with
  // dots or empty, '?' for one character.
  std::string pattern = {};
  std::shared_ptr<Hook> hook = {};
};

// The first rule that fits a parameter's name decides. Each hook gets its parameters of a
// bucket as a bucket of their own, and all run at the same time; parameters that are not
// contiguous are copied out and back. One hook may be in several rules. As text, for
// make_hook: "rules:*.bias=allreduce;embed.*=fp16;*=int8".
//
// Throws ConfigError for no rules, a rule without pattern or hook, and rules behind "*",
// which no parameter reaches; when the hook is set, for a parameter that no rule fits.
// HookStats::parts has each rule's traffic.
BRIGADE_API std::shared_ptr<Hook> rules(std::vector<Rule> list);

// ---- PowerSGD ---------------------------------------------------------------------------
//
// PowerSGD sends gradients as low-rank matrices (Vogels, Karimireddy, Jaggi: PowerSGD,
// NeurIPS 2019).

struct CompressionStats {
  double rate = 0;  // before / after; 0 while nothing was compressed
  int64_t elements_before = 0;
  int64_t elements_after = 0;
};

// The names are PyTorch's.
struct PowerSGDOptions {
  // ---- changes the result
  // Columns of P and Q; 1 or more. More: less error, more bytes.
  int64_t matrix_approximation_rank = 1;
  // Steps of plain averaging before compression starts; 0 or more.
  int64_t start_powerSGD_iter = 1000;
  // A matrix is compressed only if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  // Add each step's error to the gradients of the next step.
  bool use_error_feedback = true;
  // Start from the last step's Q instead of a random one.
  bool warm_start = true;
  // Added to every column's norm; 0 is safe: a column of zeros stays zero.
  double orthogonalization_epsilon = 0;
  uint64_t random_seed = 0;
  // 2: P and Q in every step, one all-reduce after the other. 1: P and Q in turns, one
  // all-reduce a step: half the bytes and half the latency, and less exact, as each is
  // computed with the other of the step before. Only for make_power_sgd.
  int64_t rounds = 2;

  // ---- changes only speed or memory
  // Steps between two reports of the compression statistics.
  int64_t compression_stats_logging_frequency = 10'000;
  // Gets each report, on the thread that runs the hook; must not throw. Empty: reports go
  // to LibTorch's log, at the level INFO.
  std::function<void(int64_t iteration, const CompressionStats& stats)> report = nullptr;
  // Compress matrices of one shape in one batched product.
  bool batch_tensors_with_same_shape = false;
};

class BRIGADE_API PowerSGDHook : public Hook {
 public:
  virtual CompressionStats compression_stats() const = 0;
};

// Compresses each matrix of a bucket by itself. Vectors and matrices too small to gain are
// sent uncompressed with the P's in one all-reduce; the Q's follow in a second, unless
// `rounds` is 1. Keeps errors and Q's by parameter. Throws ConfigError for options out of
// range.
BRIGADE_API std::shared_ptr<PowerSGDHook> make_power_sgd(PowerSGDOptions options = {});
// Compresses the whole bucket as one matrix, nearly square: faster, coarser.
BRIGADE_API std::shared_ptr<PowerSGDHook> make_batched_power_sgd(
    PowerSGDOptions options = {});

}  // namespace brigade
