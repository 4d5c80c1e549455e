#include "zero/zero_state.h"

#include <ATen/ATen.h>

#include <sstream>

#include "exchange/state_transport.h"

namespace brigade::optim {

std::string group_prefix(size_t group) { return "group." + std::to_string(group) + "/"; }

std::string names_of(const NamedParameters& parameters) {
  std::string text;
  for (const auto& [name, tensor] : parameters) text += (text.empty() ? "" : "\n") + name;
  return text;
}

void check_names(const OptimizerState& state, const NamedParameters& here) {
  const auto found = state.values.find(kNamesKey);
  if (found == state.values.end())
    throw ConfigError("ZeRO: the state has no such group of parameters");
  const std::string mine = names_of(here);
  if (found->second == mine) return;
  std::istringstream theirs(found->second), ours(mine);
  std::string there, name;
  while (std::getline(ours, name) && std::getline(theirs, there) && name == there) {
  }
  throw ConfigError("ZeRO: the state is of other parameters: '" + there +
                    "' there, where '" + name + "' is here");
}

void merge(OptimizerState& into, OptimizerState from) {
  into.tensors.merge(from.tensors);
  into.values.merge(from.values);
}

OptimizerState with_prefix(const std::string& prefix, const OptimizerState& state) {
  OptimizerState out;
  for (const auto& [key, tensor] : state.tensors) out.tensors[prefix + key] = tensor;
  for (const auto& [key, value] : state.values) out.values[prefix + key] = value;
  return out;
}

OptimizerState without_prefix(const std::string& prefix, const OptimizerState& state) {
  OptimizerState out;
  for (const auto& [key, tensor] : state.tensors)
    if (key.starts_with(prefix)) out.tensors[key.substr(prefix.size())] = tensor;
  for (const auto& [key, value] : state.values)
    if (key.starts_with(prefix)) out.values[key.substr(prefix.size())] = value;
  return out;
}

OptimizerState consolidated(const ProcessGroup& group, const OptimizerState& mine, int to) {
  OptimizerState sent = mine;
  sent.values.erase(kOwnersKey);
  if (group.rank() == to) {
    for (auto& [key, tensor] : sent.tensors) tensor = tensor.detach().clone().cpu();
  }
  OptimizerState whole = exchange_states(group, {{to, std::move(sent)}}, at::kCPU);
  return group.rank() == to ? whole : OptimizerState{};
}

}  // namespace brigade::optim
