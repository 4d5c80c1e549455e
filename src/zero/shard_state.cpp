#include "zero/shard_state.h"

#include <ATen/ATen.h>

#include <sstream>
#include <unordered_map>

#include "exchange/flat_buffer.h"
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

namespace {

// Maps the part of a key before its last dot, "group.N/NAME", to the parameter.
std::unordered_map<std::string, const ShardedParameter*> by_key(
    const std::vector<ShardedParameter>& parameters) {
  std::unordered_map<std::string, const ShardedParameter*> found;
  for (const ShardedParameter& each : parameters)
    found[group_prefix(each.group()) + each.name()] = &each;
  return found;
}

// Replaces each tensor of `state` that belongs to a parameter.
template <class Change>
OptimizerState change_tensors(OptimizerState state,
                              const std::vector<ShardedParameter>& parameters,
                              const Change& change) {
  const auto owners = by_key(parameters);
  for (auto& [key, tensor] : state.tensors) {
    const auto owner = owners.find(key.substr(0, key.rfind('.')));
    if (owner != owners.end()) tensor = change(key, tensor, *owner->second);
  }
  return state;
}

[[noreturn]] void refuse(const std::string& key, const at::Tensor& tensor,
                         int64_t expected) {
  throw ConfigError(c10::str("ZeRO: '", key, "' has ", tensor.numel(),
                             " elements, but the parameter needs ", expected));
}

}  // namespace

OptimizerState join_shards(const std::vector<OptimizerState>& shards,
                           const std::vector<ShardedParameter>& parameters) {
  const auto owners = by_key(parameters);
  const int ranks = static_cast<int>(shards.size());
  std::unordered_map<const ShardedParameter*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) index_of[&parameters[i]] = i;
  OptimizerState whole;
  std::map<std::string, int64_t> filled;
  for (int rank = 0; rank < ranks; ++rank) {
    const OptimizerState& shard = shards[static_cast<size_t>(rank)];
    whole.values.insert(shard.values.begin(), shard.values.end());
    for (const auto& [key, tensor] : shard.tensors) {
      const auto owner = owners.find(key.substr(0, key.rfind('.')));
      if (owner == owners.end()) continue;
      const int64_t n = owner->second->parameter().numel();
      const ShardRange range = shard_range(n, index_of.at(owner->second), rank, ranks);
      if (tensor.numel() != range.length) refuse(key, tensor, range.length);
      at::Tensor& all = whole.tensors[key];
      if (!all.defined()) all = at::empty({n}, tensor.options());
      all.narrow(0, range.begin, range.length).copy_(tensor);
      filled[key] += range.length;
    }
  }
  for (const auto& [key, tensor] : whole.tensors) {
    if (filled[key] != tensor.numel())
      throw ConfigError("ZeRO: shards of '" + key + "' are missing");
  }
  return whole;
}

OptimizerState cut_shards(const OptimizerState& whole,
                          const std::vector<ShardedParameter>& parameters, int rank) {
  const auto cut = [&](const std::string& key, const at::Tensor& tensor,
                       const ShardedParameter& owner) {
    if (tensor.numel() != owner.parameter().numel())
      refuse(key, tensor, owner.parameter().numel());
    const ShardRange range = owner.range(rank);
    return tensor.flatten().narrow(0, range.begin, range.length);
  };
  return change_tensors(whole, parameters, cut);
}

OptimizerState shape_state(OptimizerState flat,
                           const std::vector<ShardedParameter>& parameters) {
  const auto shape = [](const std::string&, const at::Tensor& tensor,
                        const ShardedParameter& owner) {
    return tensor.as_strided(owner.parameter().sizes(), owner.parameter().strides());
  };
  return change_tensors(std::move(flat), parameters, shape);
}

OptimizerState flatten_state(OptimizerState shaped,
                             const std::vector<ShardedParameter>& parameters) {
  const auto flatten = [](const std::string& key, const at::Tensor& tensor,
                          const ShardedParameter& owner) {
    if (tensor.sizes() != owner.parameter().sizes())
      refuse(key, tensor, owner.parameter().numel());
    at::Tensor same =
        at::empty_strided(tensor.sizes(), owner.parameter().strides(), tensor.options());
    return flat_view(same.copy_(tensor));
  };
  return change_tensors(std::move(shaped), parameters, flatten);
}

}  // namespace brigade::optim
