// The state of torch's optimizers, by the names of the model's parameters.
#include <ATen/ATen.h>

#include "brigade/checkpoint.h"
#include "checkpoint/named.h"
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

// The names of each group's parameters, in order.
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
