// The state of sharded parameters, as ZeRO's hook "zero" has it.
#pragma once
#include <vector>

#include "brigade/optim.h"
#include "exchange/sharded_parameter.h"

namespace brigade::optim {

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
