// State of ZeRO's optimizers: its keys, its collection from all ranks, sharded parameters.
#pragma once
#include <string>
#include <vector>

#include "brigade/optim.h"
#include "brigade/process_group.h"
#include "exchange/sharded_parameter.h"

namespace brigade::optim {

// Keys beside those that a group's optimizer uses.
inline constexpr const char* kNamesKey = "parameters";  // of all the group's parameters
inline constexpr const char* kOwnersKey = "owners";     // of all parameters, by index

std::string group_prefix(size_t group);
std::string names_of(const NamedParameters& parameters);
// Throws ConfigError unless the state, of one group, is of these parameters.
void check_names(const OptimizerState& state, const NamedParameters& here);

// Adds the keys that `into` lacks.
void merge(OptimizerState& into, OptimizerState from);
// These put `prefix` before each key, or take the keys that have it, without it.
OptimizerState with_prefix(const std::string& prefix, const OptimizerState& state);
OptimizerState without_prefix(const std::string& prefix, const OptimizerState& state);

// Collective. Merges all ranks' states on rank `to`, copied to host memory.
OptimizerState consolidated(const ProcessGroup& group, const OptimizerState& mine, int to);

// The state of sharded parameters, in the form of ZeRO's hook "zero".

// Makes flat state of whole parameters from the shards of any number of ranks, and back.
// Keys of other parameters are skipped. Throws ConfigError if a shard is missing.
OptimizerState join_shards(const std::vector<OptimizerState>& shards,
                           const std::vector<ShardedParameter>& parameters);
OptimizerState cut_shards(const OptimizerState& whole,
                          const std::vector<ShardedParameter>& parameters, int rank);
// Gives flat state the parameters' shapes, and back.
OptimizerState shape_state(OptimizerState flat,
                           const std::vector<ShardedParameter>& parameters);
OptimizerState flatten_state(OptimizerState shaped,
                             const std::vector<ShardedParameter>& parameters);

}  // namespace brigade::optim
