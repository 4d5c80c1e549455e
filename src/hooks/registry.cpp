#include <algorithm>
#include <array>
#include <map>
#include <variant>

#include "base/option_spec.h"
#include "brigade/hooks.h"
#include "hooks/auto/auto_hook.h"
#include "hooks/factories.h"
#include "hooks/hook_text.h"

namespace brigade {
namespace {

using Make = std::shared_ptr<Hook> (*)(const base::OptionSpec&);
using MakeOfHooks = std::shared_ptr<Hook> (*)(std::string_view options);
using Wrap = std::shared_ptr<Hook> (*)(std::shared_ptr<Hook>);

std::shared_ptr<Hook> small_wrapper(std::shared_ptr<Hook> inner) {
  return exact_small_wrapper(std::move(inner));
}

// The table of what may stand before a '+'.
struct Wrapper {
  std::string_view name;
  Wrap wrap;
};
constexpr std::array kWrappers{
    Wrapper{"fp16", fp16_compress_wrapper}, Wrapper{"bf16", bf16_compress_wrapper},
    Wrapper{"node", node_wrapper}, Wrapper{"small", small_wrapper}};

// A row of the table, with what only this file uses. A hook that is made of others has a
// MakeOfHooks: its options are texts of hooks.
struct Row {
  HookEntry entry;
  std::variant<Make, MakeOfHooks> make;
};

template <std::shared_ptr<Hook> (*factory)()>
std::shared_ptr<Hook> plain(const base::OptionSpec&) {
  return factory();
}

template <std::shared_ptr<Hook> (*factory)(bool flat)>
std::shared_ptr<Hook> dense(const base::OptionSpec& given) {
  return with_small_option(factory(given.flag("flat", false)), given.size("small", 0));
}

std::shared_ptr<Hook> top_k(const base::OptionSpec& given) {
  return with_small_option(
      make_top_k(given.number("ratio", kDefaultRatio), given.flag("flat", false)),
      given.size("small", 0));
}
std::shared_ptr<Hook> random_k(const base::OptionSpec& given) {
  return make_random_k(given.number("ratio", kDefaultRatio), given.natural("seed", 0));
}

template <std::shared_ptr<PowerSGDHook> (*factory)(PowerSGDOptions)>
std::shared_ptr<Hook> power_sgd(const base::OptionSpec& given) {
  PowerSGDOptions options;
  options.matrix_approximation_rank =
      given.integer("rank", options.matrix_approximation_rank);
  options.start_powerSGD_iter = given.integer("start", options.start_powerSGD_iter);
  options.min_compression_rate = given.number("min_rate", options.min_compression_rate);
  options.use_error_feedback = given.flag("ef", options.use_error_feedback);
  options.warm_start = given.flag("warm", options.warm_start);
  options.orthogonalization_epsilon =
      given.number("eps", options.orthogonalization_epsilon);
  options.random_seed = given.natural("seed", options.random_seed);
  options.batch_tensors_with_same_shape =
      given.flag("batch", options.batch_tensors_with_same_shape);
  options.rounds = given.integer("rounds", options.rounds);
  return factory(options);
}

// The default rules: vectors of norms and biases exact, the rest in int8.
constexpr std::string_view kUsualRules = "*bias=allreduce;*norm*=allreduce;*=int8";

// Rules of the same text share a hook, so that their parameters travel together.
std::shared_ptr<Hook> make_rules(std::string_view options) {
  std::map<std::string_view, std::shared_ptr<Hook>> made;
  std::vector<Rule> list;
  for (const auto& [pattern, text] : rule_texts(options.empty() ? kUsualRules : options)) {
    std::shared_ptr<Hook>& hook = made[text];
    if (!hook) hook = make_hook(text);
    list.push_back({std::string(pattern), hook});
  }
  return rules(std::move(list));
}

const std::vector<std::string_view> kDenseOptions{"flat", "small"};
const std::vector<std::string_view> kBatchedPowerSGDOptions{
    "rank", "start", "min_rate", "ef", "warm", "eps", "seed", "batch"};
const std::vector<std::string_view> kPowerSGDOptions = [] {
  std::vector<std::string_view> options = kBatchedPowerSGDOptions;
  options.push_back("rounds");
  return options;
}();

constexpr std::string_view kIndexError =
    "PyTorch's fails over Gloo: IndexError in its own hook";

// topk and randomk send one value of 100. A value waits for about 100 steps, and is then
// sent about 100 times as large: a step's result has sqrt(0.01) * 100 = 10 times the size
// of the gradients, and differs from their mean by that and a little more.
constexpr double kFewValuesTolerance = 12;

using Fails = TorchHook::Fails;

const std::array kRows{
    Row{{.name = "allreduce",
         .summary = "the exact mean, in the gradients' own dtype",
         .tolerance = 1e-5,
         .torch = {.name = "default_hooks.allreduce_hook", .tolerance = 1e-5}},
        plain<make_allreduce>},
    Row{{.name = "fp16",
         .summary = "send fp16, sum in fp32: half the bytes",
         .options = kDenseOptions,
         .tolerance = 1e-3,
         .as_candidate = "fp16",
         .torch = {.name = "default_hooks.fp16_compress_hook", .tolerance = 2e-3}},
        dense<make_fp16>},
    Row{{.name = "bf16",
         .summary = "send bf16, sum in fp32: half the bytes, float's range",
         .options = kDenseOptions,
         .tolerance = 8e-3,
         .torch = {.name = "default_hooks.bf16_compress_hook", .tolerance = 2e-2}},
        dense<make_bf16>},
    Row{{.name = "quantize_per_tensor",
         .summary = "affine uint8, one scale a chunk: a quarter of the bytes",
         .options = kDenseOptions,
         .tolerance = 5e-2,
         .torch = {.name = "quantization_hooks.quantization_pertensor_hook",
                   .tolerance = 5e-2,
                   .fails = Fails::over_gloo,
                   .why = kIndexError}},
        dense<make_quantize_per_tensor>},
    Row{{.name = "quantize_per_channel",
         .summary = "affine uint8, a scale for each 512 values",
         .options = kDenseOptions,
         .tolerance = 1e-2,
         .torch = {.name = "quantization_hooks.quantization_perchannel_hook",
                   .tolerance = 5e-2,
                   .fails = Fails::over_gloo,
                   .why = kIndexError}},
        dense<make_quantize_per_channel>},
    Row{{.name = "powersgd",
         .summary = "low-rank matrices: rank (rows + columns) numbers for rows x columns",
         .options = kPowerSGDOptions,
         .tolerance = 1.0,
         .error_feedback = true,
         .in_short_runs = "powersgd:rank=2,start=10",
         // The exact steps at the beginning of `auto` are its warm-up.
         .as_candidate = "powersgd:rank=2,start=0",
         .torch = {.name = "powerSGD_hook.powerSGD_hook",
                   .tolerance = 1.0,
                   .fails = Fails::over_gloo_with_buckets,
                   .why = "PyTorch's hangs over Gloo with more than one bucket"}},
        power_sgd<make_power_sgd>},
    Row{{.name = "batched_powersgd",
         .summary = "the whole bucket as one low-rank square: fewest bytes, coarsest",
         .options = kBatchedPowerSGDOptions,
         .tolerance = 1.0,
         .error_feedback = true,
         .in_short_runs = "batched_powersgd:start=10",
         .torch = {.name = "powerSGD_hook.batched_powerSGD_hook",
                   .tolerance = 1.0,
                   .fails = Fails::always,
                   .why = "PyTorch's fails: an assertion on its own matrix"}},
        power_sgd<make_batched_power_sgd>},
    Row{{.name = "noop",
         .summary = "no communication: only to see what it costs",
         .tolerance = -1,
         .torch = {.name = "debugging_hooks.noop_hook", .tolerance = -1}},
        plain<make_noop>},
    Row{{.name = "int8",
         .summary = "int8 with a scale for each 256 values and error feedback",
         .options = kDenseOptions,
         .tolerance = 1.5e-2,
         .error_feedback = true,
         .as_candidate = "int8"},
        dense<make_int8>},
    Row{{.name = "int4",
         .summary = "rotated int4 with a scale for each 128 values and error feedback",
         .options = kDenseOptions,
         .tolerance = 2e-1,
         .error_feedback = true,
         .as_candidate = "int4"},
        dense<make_int4>},
    Row{{.name = "topk",
         .summary = "the largest values and their places, the rest in later steps",
         .options = {"ratio", "flat", "small"},
         .tolerance = kFewValuesTolerance,
         .error_feedback = true,
         .in_short_runs = "topk:ratio=0.1"},
        top_k},
    Row{{.name = "randomk",
         .summary =
             "values drawn at random, the same on all ranks, the rest in later steps",
         .options = {"ratio", "seed"},
         .tolerance = kFewValuesTolerance,
         .error_feedback = true,
         .in_short_runs = "randomk:ratio=0.1"},
        random_k},
    Row{{.name = "fixed",
         .summary = "the exact mean, added up in the order of the ranks: always the same "
                    "bits",
         .tolerance = 1e-5},
        plain<make_fixed>},
    Row{{.name = "rules",
         .summary = "a hook for each kind of parameter, by name: PATTERN=HOOK;PATTERN=HOOK",
         .tolerance = 1.5e-2,
         .error_feedback = true},
        make_rules},
    Row{{.name = "auto",
         .summary = "exact averaging, or whatever is measured to be quicker here",
         .options = {"least", "among"},
         .tolerance = 1.5e-2,
         .error_feedback = true},
        make_auto_of},
};

const std::vector<HookEntry>& entries() {
  static const std::vector<HookEntry> all = [] {
    std::vector<HookEntry> list;
    for (const Row& row : kRows) {
      list.push_back(row.entry);
      list.back().of_hooks = std::holds_alternative<MakeOfHooks>(row.make);
    }
    return list;
  }();
  return all;
}

template <class Table, class Name>
std::vector<std::string_view> names(const Table& table, Name name) {
  std::vector<std::string_view> list;
  for (const auto& row : table) list.push_back(std::invoke(name, row));
  return list;
}

const Row& find(std::string_view name) {
  const auto found = std::find_if(kRows.begin(), kRows.end(),
                                  [&](const Row& row) { return row.entry.name == name; });
  if (found == kRows.end()) {
    const std::vector<std::string> own = registered_names();
    std::vector<std::string_view> known =
        names(kRows, [](const Row& row) { return row.entry.name; });
    known.insert(known.end(), own.begin(), own.end());
    throw ConfigError("no hook named '" + std::string(name) + "'" +
                      base::suggestion(name, known));
  }
  return *found;
}

// Null: there is no such row, or its hook is not made of hooks.
MakeOfHooks find_of_hooks(std::string_view name) {
  const auto found =
      std::ranges::find(kRows, name, [](const Row& row) { return row.entry.name; });
  const auto* make =
      found == kRows.end() ? nullptr : std::get_if<MakeOfHooks>(&found->make);
  return make ? *make : nullptr;
}

Wrap find_wrapper(std::string_view name) {
  const auto found = std::ranges::find(kWrappers, name, &Wrapper::name);
  if (found != kWrappers.end()) return found->wrap;
  if (!registered_factory(name)) find(name);  // throws, unless it is a hook
  throw ConfigError("hook '" + std::string(name) + "' can't stand before '+'" +
                    base::suggestion(name, names(kWrappers, &Wrapper::name)));
}

}  // namespace

std::span<const HookEntry> hook_table() { return entries(); }

std::shared_ptr<Hook> make_hook(std::string_view spec) {
  const std::string_view head = hook_head(spec);
  // The text after it may be texts of hooks that contain a '+'.
  const MakeOfHooks of_hooks = find_of_hooks(head.substr(head.rfind('+') + 1));
  const size_t plus = (of_hooks ? head : spec).find('+');
  if (plus != std::string_view::npos) {
    return find_wrapper(spec.substr(0, plus))(make_hook(spec.substr(plus + 1)));
  }
  const std::string_view options = hook_options(spec);
  if (of_hooks) return of_hooks(options);
  if (const HookFactory factory = registered_factory(head)) {
    auto hook = factory(parse_arguments(head, options));
    if (!hook) throw ConfigError("hook '" + std::string(head) + "': its factory gave none");
    return hook;
  }
  const Row& row = find(head);
  return std::get<Make>(row.make)(
      base::OptionSpec(row.entry.name, options, row.entry.options, "hook", bare_options()));
}

std::string_view hook_spec(DDPCommHookType type) {
  switch (type) {
    case DDPCommHookType::ALLREDUCE:
      return "allreduce";
    case DDPCommHookType::FP16_COMPRESS:
      return "fp16";
    case DDPCommHookType::BF16_COMPRESS:
      return "bf16";
    case DDPCommHookType::QUANTIZE_PER_TENSOR:
      return "quantize_per_tensor";
    case DDPCommHookType::QUANTIZE_PER_CHANNEL:
      return "quantize_per_channel";
    case DDPCommHookType::POWER_SGD:
      return "powersgd:rank=1";
    case DDPCommHookType::POWER_SGD_RANK2:
      return "powersgd:rank=2";
    case DDPCommHookType::BATCHED_POWER_SGD:
      return "batched_powersgd:rank=1";
    case DDPCommHookType::BATCHED_POWER_SGD_RANK2:
      return "batched_powersgd:rank=2";
    case DDPCommHookType::NOOP:
      return "noop";
  }
  throw ConfigError("not a DDPCommHookType: " + std::to_string(static_cast<int>(type)));
}

std::shared_ptr<Hook> make_hook(DDPCommHookType type) { return make_hook(hook_spec(type)); }

}  // namespace brigade
