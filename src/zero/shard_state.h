// The state of ZeRO's optimizers: its keys, how it comes together from all ranks, and that
// of sharded parameters.
#pragma once
#include <string>
#include <vector>

#include "brigade/optim.h"
#include "brigade/process_group.h"
#include "exchange/sharded_parameter.h"

namespace brigade::optim {

// Keys beside those that the optimizer of a group uses.
inline constexpr const char* kNamesKey = "parameters";  // all of the group's
inline constexpr const char* kOwnersKey = "owners";     // of all parameters, by index

std::string group_prefix(size_t group);
std::string names_of(const NamedParameters& parameters);
// Throws ConfigError unless the state, of one group, is of these parameters.
void check_names(const OptimizerState& state, const NamedParameters& here);

// Adds what is not there yet.
void merge(OptimizerState& into, OptimizerState from);
// Puts `prefix` before each key; or takes the keys that have it, without it.
OptimizerState with_prefix(const std::string& prefix, const OptimizerState& state);
OptimizerState without_prefix(const std::string& prefix, const OptimizerState& state);

// Collective. All ranks' states in one on rank `to`, in host memory, copied.
OptimizerState consolidated(const ProcessGroup& group, const OptimizerState& mine, int to);

// The state of sharded parameters, as ZeRO's hook "zero" has it.

// Makes flat state of whole parameters from the shards of any number of ranks, and back.
// Keys that are of none of the parameters are passed over. Throws ConfigError where a shard
// is missing.
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
