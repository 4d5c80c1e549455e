// The state of torch's optimizers, by the names of the model's parameters.
#include <ATen/ATen.h>

#include <charconv>

#include "brigade/checkpoint.h"
#include "brigade/local_sgd.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "brigade/zero.h"
#include "checkpoint/named_tensors.h"
#include "optim/torch_state.h"

namespace brigade {
namespace {

using optim::TorchKind;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

const TorchKind& kind_of(const Optimizer& optimizer) {
  if (const TorchKind* kind = optim::torch_kind(optimizer)) return *kind;
  throw ConfigError(std::string("optimizer_part knows torch::optim's ") +
                    optim::kTorchKinds +
                    "; for another one make a CheckpointPart of your own");
}

std::string group_prefix(size_t index) { return "group." + std::to_string(index) + "/"; }
std::string state_prefix(const std::string& parameter) {
  return "state/" + parameter + "/";
}

// Returns the names of each group's parameters, in order.
std::vector<std::vector<std::string>> names_in(Optimizer& optimizer,
                                               torch::nn::Module& model) {
  std::map<const void*, std::string> names;
  for (const auto& [name, tensor] : named_parameters(model))
    names[tensor.unsafeGetTensorImpl()] = name;
  std::vector<std::vector<std::string>> groups;
  for (auto& group : optimizer.param_groups()) {
    auto& of_group = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end())
        throw ConfigError("the optimizer has a parameter, " + looks_like(parameter) +
                          ", that is not one of the model's");
      of_group.push_back(found->second);
    }
  }
  return groups;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + name;
  return text;
}

PartState save_optimizer(Optimizer& optimizer, torch::nn::Module& model) {
  const TorchKind& kind = kind_of(optimizer);
  const auto names = names_in(optimizer, model);
  PartState out;
  out.values["kind"] = kind.name;
  out.values["groups"] = std::to_string(names.size());
  for (size_t g = 0; g < names.size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    out.values[group_prefix(g) + "parameters"] = joined(names[g]);
    optim::write_options(kind, group.options(), group_prefix(g), out);
    for (size_t p = 0; p < names[g].size(); ++p) {
      const auto found = optimizer.state().find(group.params()[p].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      optim::write_state(kind, *found->second, state_prefix(names[g][p]), out);
    }
  }
  return out;
}

void check_value(const PartState& saved, const std::string& key, const std::string& here) {
  const auto found = saved.values.find(key);
  const std::string there = found == saved.values.end() ? "nothing" : found->second;
  if (there != here)
    throw CheckpointError(key + " is '" + there + "' in the checkpoint, but '" + here +
                          "' here");
}

std::function<void()> load_optimizer(Optimizer& optimizer, torch::nn::Module& model,
                                     const PartState& saved) try {
  const TorchKind& kind = kind_of(optimizer);
  const auto names = names_in(optimizer, model);
  check_value(saved, "kind", kind.name);
  check_value(saved, "groups", std::to_string(names.size()));
  using States = std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>>;
  auto states = std::make_shared<States>();
  auto options = std::make_shared<std::vector<std::unique_ptr<OptimizerOptions>>>();
  for (size_t g = 0; g < names.size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    check_value(saved, group_prefix(g) + "parameters", joined(names[g]));
    options->push_back(group.options().clone());
    optim::read_options(kind, saved, group_prefix(g), *options->back());
    for (size_t p = 0; p < names[g].size(); ++p) {
      const at::Tensor& parameter = group.params()[p];
      if (auto state = optim::read_state(kind, saved, state_prefix(names[g][p]), parameter))
        states->emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  }
  return [&optimizer, states, options] {
    optimizer.state().clear();
    for (auto& [key, state] : *states) optimizer.state()[key] = std::move(state);
    for (size_t g = 0; g < options->size(); ++g)
      optimizer.param_groups()[g].set_options(std::move((*options)[g]));
  };
} catch (const ConfigError& error) {
  throw CheckpointError(error.what());
}

}  // namespace

CheckpointPart optimizer_part(torch::optim::Optimizer& optimizer, torch::nn::Module& model,
                              std::string name) {
  names_in(optimizer, model);
  kind_of(optimizer);
  CheckpointPart part{.name = std::move(name)};
  part.save = [&] { return save_optimizer(optimizer, model); };
  part.load = [&](SavedPart saved) {
    return load_optimizer(optimizer, model, saved.states.at(0));
  };
  return part;
}

}  // namespace brigade

// Brigade's own optimizers keep their state by parameter name already.

namespace brigade {
namespace {

// State of parameters that the model lacks is of another model; it would be lost silently.
void check_nothing_left(const PartState& saved, const NamedTensors& parameters) {
  std::set<std::string> known;
  for (const auto& [name, parameter] : parameters) known.insert(name);
  for (const auto& [key, tensor] : saved.tensors) {
    const std::string name = key.substr(0, key.rfind('.'));
    if (!known.contains(name))
      throw CheckpointError("its tensor '" + key + "' is of a parameter '" + name +
                            "', which the model does not have");
  }
}

std::function<void()> load(optim::Optimizer& optimizer, torch::nn::Module& model,
                           const PartState& saved) try {
  const NamedTensors parameters = named_parameters(model);
  check_nothing_left(saved, parameters);
  return optimizer.read_state(saved, parameters);
} catch (const ConfigError& error) {
  throw CheckpointError(error.what());
}

}  // namespace

CheckpointPart optimizer_part(optim::Optimizer& optimizer, torch::nn::Module& model,
                              std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&] { return optimizer.state(named_parameters(model)); };
  part.load = [&](SavedPart saved) { return load(optimizer, model, saved.states.at(0)); };
  return part;
}

namespace {

template <class State, class Visitor>
void for_each_field(State& state, Visitor&& visit) {
  visit("scale", state.scale);
  visit("growth_factor", state.growth_factor);
  visit("backoff_factor", state.backoff_factor);
  visit("growth_interval", state.growth_interval);
  visit("growth_tracker", state.growth_tracker);
}

// Writes the shortest text that reads back as the same number.
template <class Number>
std::string text_of(Number value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

GradScalerState read(const PartState& part) {
  GradScalerState state;
  for_each_field(state, [&](const char* name, auto& value) {
    const auto found = part.values.find(name);
    if (found == part.values.end()) {
      throw CheckpointError(std::string("its value '") + name +
                            "' is not there; was the scaler that was saved not enabled?");
    }
    const std::string& text = found->second;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) {
      throw CheckpointError(std::string("its value '") + name + "' is '" + text +
                            "', which is no number");
    }
  });
  return state;
}

}  // namespace

CheckpointPart scaler_part(GradScaler& scaler, std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&scaler] {
    PartState out;
    if (auto state = scaler.state()) {
      for_each_field(*state, [&](const char* field, auto value) {
        out.values[field] = text_of(value);
      });
    }
    return out;
  };
  part.load = [&scaler](SavedPart saved) -> std::function<void()> {
    if (!scaler.is_enabled()) return [] {};
    const GradScalerState state = read(saved.states.at(0));
    try {
      GradScaler().load_state(state);  // throws for values that no scaler has
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
    return [&scaler, state] { scaler.load_state(state); };
  };
  return part;
}

CheckpointPart zero_part(optim::ShardedOptimizer& optimizer, std::string name) {
  CheckpointPart part{.name = std::move(name), .per_rank = true};
  part.save = [&optimizer] { return optimizer.shard_state(); };
  part.load = [&optimizer](const SavedPart& saved) {
    try {
      return optimizer.load_shards(saved.states, saved.saved_ranks);
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
  };
  return part;
}

namespace {

constexpr const char* kStep = "step";

// Makes a part that holds only a count.
CheckpointPart count_part(std::string name, std::function<int64_t()> get,
                          std::function<void(int64_t)> set) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [get] {
    PartState state;
    state.values[kStep] = std::to_string(get());
    return state;
  };
  part.load = [set](const SavedPart& saved) {
    const auto& values = saved.states.at(0).values;
    const auto found = values.find(kStep);
    const std::string text = found == values.end() ? "nothing" : found->second;
    int64_t step = -1;
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, step).ptr != end || step < 0)
      throw CheckpointError("its step is '" + text + "', which is no count");
    return [set, step] { set(step); };
  };
  return part;
}

// Turns a refused state into the checkpoint's fault.
template <class Read>
std::function<void()> checked(Read read) try {
  return read();
} catch (const ConfigError& error) {
  throw CheckpointError(error.what());
}

}  // namespace

CheckpointPart averager_part(ModelAverager& averager, std::string name) {
  return count_part(
      std::move(name), [&averager] { return averager.step(); },
      [&averager](int64_t step) { averager.set_step(step); });
}

CheckpointPart local_sgd_part(optim::LocalSGD& local, std::string name) {
  return count_part(
      std::move(name), [&local] { return local.steps(); },
      [&local](int64_t steps) { local.set_steps(steps); });
}

std::vector<CheckpointPart> diloco_parts(optim::DiLoCo& diloco, std::string name) {
  CheckpointPart shared{.name = name};
  shared.save = [&diloco] { return diloco.state(); };
  shared.load = [&diloco](SavedPart saved) {
    return checked([&] { return diloco.read_state(std::move(saved.states.at(0))); });
  };
  CheckpointPart of_rank{.name = name + ".rank", .per_rank = true};
  of_rank.save = [&diloco] { return diloco.rank_state(); };
  of_rank.load = [&diloco](SavedPart saved) {
    return checked([&] { return diloco.read_rank_state(std::move(saved.states)); });
  };
  return {std::move(shared), std::move(of_rank)};
}

CheckpointPart per_rank(CheckpointPart part) {
  part.per_rank = true;
  return part;
}

}  // namespace brigade
