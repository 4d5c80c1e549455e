#include "brigade/checkpoint.h"
#include "brigade/zero/zero.h"

namespace brigade {

CheckpointPart zero_part(optim::ShardedOptimizer& optimizer, std::string name) {
  CheckpointPart part{.name = std::move(name), .per_rank = true};
  part.save = [&optimizer] {
    optim::OptimizerState state = optimizer.shard_state();
    return PartState{std::move(state.tensors), std::move(state.values)};
  };
  part.load = [&optimizer](SavedPart saved) {
    std::vector<optim::OptimizerState> shards;
    for (PartState& state : saved.states)
      shards.push_back({std::move(state.tensors), std::move(state.values)});
    try {
      return optimizer.load_shards(shards, saved.saved_ranks);
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
  };
  return part;
}

}  // namespace brigade
