// States of hooks: for another number of ranks, and for hooks that are made of others.
#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "brigade/compose_hooks.h"
#include "brigade/hook.h"

namespace brigade {
namespace {

bool is_own(const auto& value) { return value.first.starts_with(kOwnPrefix); }

bool keeps_nothing(const HookState& shard) {
  return shard.tensors.empty() && !shard.values.empty() &&
         std::ranges::all_of(shard.values, [](const auto& value) { return is_own(value); });
}

// Splits a part's key, "error.part2/name", into "error." and "part2/name".
std::pair<std::string_view, std::string_view> prefix_of(std::string_view key) {
  for (const std::string_view prefix : {kErrorPrefix, kOwnPrefix}) {
    if (key.starts_with(prefix))
      return {key.substr(0, prefix.size()), key.substr(prefix.size())};
  }
  return {{}, key};
}

std::string mark_of(int part) { return "part" + std::to_string(part) + "/"; }

// The number in "part2/…"; -1 for other keys.
int part_in(std::string_view rest) {
  constexpr std::string_view kWord = "part";
  const size_t slash = rest.find('/');
  if (!rest.starts_with(kWord) || slash == std::string_view::npos) return -1;
  const std::string_view digits = rest.substr(kWord.size(), slash - kWord.size());
  if (digits.empty() || digits.size() > 6 ||
      !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }))
    return -1;
  return std::stoi(std::string(digits));
}
int part_of_key(std::string_view key) { return part_in(prefix_of(key).second); }

// The hook's own entries, without those of its parts.
HookState own_state(const HookState& from) {
  HookState state = from;
  const auto is_parts = [](const auto& entry) { return part_of_key(entry.first) >= 0; };
  std::erase_if(state.tensors, is_parts);
  std::erase_if(state.values, is_parts);
  return state;
}

std::set<int> parts_in(std::span<const HookState> shards) {
  std::set<int> parts;
  const auto add = [&](const auto& entries) {
    for (const auto& entry : entries) parts.insert(part_of_key(entry.first));
  };
  for (const HookState& shard : shards) {
    add(shard.tensors);
    add(shard.values);
  }
  parts.erase(-1);
  return parts;
}

HookState combine_own(const std::vector<HookState>& shards) {
  std::vector<const HookState*> keepers;
  for (const HookState& shard : shards) {
    if (!keeps_nothing(shard)) keepers.push_back(&shard);
  }
  if (keepers.empty()) return {};
  HookState combined = *keepers.front();
  std::erase_if(combined.values, [](const auto& value) { return is_own(value); });
  for (auto& [key, tensor] : combined.tensors) {
    if (key.rfind(kErrorPrefix, 0) != 0) continue;
    at::Tensor sum = at::zeros_like(tensor, at::kDouble);
    for (const HookState* shard : keepers) {
      auto found = shard->tensors.find(key);
      if (found == shard->tensors.end() || found->second.sizes() != tensor.sizes()) {
        throw ConfigError("combine_states: the shards differ in '" + key + "'");
      }
      sum += found->second;
    }
    tensor = (sum / static_cast<int64_t>(keepers.size())).to(tensor.scalar_type());
  }
  return combined;
}

}  // namespace

void add_part_state(HookState& to, int part, const HookState& from) {
  const auto add = [&](auto& entries, const auto& of_part) {
    for (const auto& [key, value] : of_part) {
      const auto [prefix, rest] = prefix_of(key);
      entries[std::string(prefix) + mark_of(part) + std::string(rest)] = value;
    }
  };
  add(to.tensors, from.tensors);
  add(to.values, from.values);
}

HookState part_state(const HookState& from, int part) {
  HookState state;
  const std::string mark = mark_of(part);
  const auto take = [&](auto& entries, const auto& of_all) {
    for (const auto& [key, value] : of_all) {
      const auto [prefix, rest] = prefix_of(key);
      if (rest.starts_with(mark))
        entries[std::string(prefix) + std::string(rest.substr(mark.size()))] = value;
    }
  };
  take(state.tensors, from.tensors);
  take(state.values, from.values);
  return state;
}

HookState combine_states(std::span<const HookState> shards) {
  if (shards.empty())
    throw ConfigError("combine_states: needs the state of at least one rank");
  std::vector<HookState> own;
  for (const HookState& shard : shards) own.push_back(own_state(shard));
  HookState combined = combine_own(own);
  for (const int part : parts_in(shards)) {
    std::vector<HookState> of_part;
    for (const HookState& shard : shards) of_part.push_back(part_state(shard, part));
    add_part_state(combined, part, combine_states(of_part));
  }
  return combined;
}

}  // namespace brigade
