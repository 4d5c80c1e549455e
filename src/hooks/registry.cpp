#include "brigade/hooks/registry.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/option_spec.h"
#include "brigade/hooks/power_sgd.h"
#include "hooks/dense.h"
#include "hooks/int8.h"
#include "hooks/registered.h"

namespace brigade {
namespace {

using Make = std::shared_ptr<Hook> (*)(const base::OptionSpec&);
using Wrap = std::shared_ptr<Hook> (*)(std::shared_ptr<Hook>);

// May stand before a '+'.
struct Wrapper {
  std::string_view name;
  Wrap wrap;
};
constexpr std::array kWrappers{Wrapper{"fp16", fp16_compress_wrapper},
                               Wrapper{"bf16", bf16_compress_wrapper},
                               Wrapper{"node", node_wrapper}};

// A row of the table, with what only this file uses.
struct Row {
  HookEntry entry;
  Make make;
};

template <std::shared_ptr<Hook> (*factory)()>
std::shared_ptr<Hook> plain(const base::OptionSpec&) {
  return factory();
}

template <std::shared_ptr<Hook> (*factory)(bool flat)>
std::shared_ptr<Hook> dense(const base::OptionSpec& given) {
  return factory(given.flag("flat", false));
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
  return factory(options);
}

const std::vector<std::string_view> kPowerSGDOptions{"rank", "start", "min_rate", "ef",
                                                     "warm", "eps",   "seed",     "batch"};

const std::array kRows{
    Row{{"allreduce", "the exact mean, in the gradients' own dtype", {}, 1e-5, false},
        plain<make_allreduce>},
    Row{{"fp16", "send fp16, sum in fp32: half the bytes", {"flat"}, 1e-3, false},
        dense<make_fp16>},
    Row{{"bf16",
         "send bf16, sum in fp32: half the bytes, float's range",
         {"flat"},
         8e-3,
         false},
        dense<make_bf16>},
    Row{{"quantize_per_tensor",
         "affine uint8, one scale a chunk: a quarter of the bytes",
         {"flat"},
         5e-2,
         false},
        dense<make_quantize_per_tensor>},
    Row{{"quantize_per_channel",
         "affine uint8, a scale for each 512 values",
         {"flat"},
         1e-2,
         false},
        dense<make_quantize_per_channel>},
    Row{{"powersgd", "low-rank matrices: rank (rows + columns) numbers for rows x columns",
         kPowerSGDOptions, 1.0, true},
        power_sgd<make_power_sgd>},
    Row{{"batched_powersgd",
         "the whole bucket as one low-rank square: fewest bytes, coarsest",
         kPowerSGDOptions, 1.0, true},
        power_sgd<make_batched_power_sgd>},
    Row{{"noop", "no communication: only to see what it costs", {}, -1, false},
        plain<make_noop>},
    Row{{"int8",
         "int8 with a scale for each 256 values and error feedback",
         {"flat"},
         1.5e-2,
         true},
        dense<make_int8>},
    Row{{"int4",
         "rotated int4 with a scale for each 128 values and error feedback",
         {"flat"},
         2e-1,
         true},
        dense<make_int4>},
};

const std::vector<HookEntry>& entries() {
  static const std::vector<HookEntry> all = [] {
    std::vector<HookEntry> list;
    for (const Row& row : kRows) list.push_back(row.entry);
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
  const size_t plus = spec.find('+');
  if (plus != std::string_view::npos) {
    return find_wrapper(spec.substr(0, plus))(make_hook(spec.substr(plus + 1)));
  }
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const std::string_view options =
      colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1);
  if (const HookFactory factory = registered_factory(name)) {
    auto hook = factory(parse_arguments(name, options));
    if (!hook) throw ConfigError("hook '" + std::string(name) + "': its factory gave none");
    return hook;
  }
  const Row& row = find(name);
  return row.make(base::OptionSpec(row.entry.name, options, row.entry.options));
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
