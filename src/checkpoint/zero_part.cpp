#include "brigade/checkpoint.h"
#include "brigade/zero.h"

namespace brigade {

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

}  // namespace brigade
