// ZeRO's hooks for a model that somebody else drives, Python's DDP for instance.
#pragma once
#include <memory>

#include "brigade/hook.h"
#include "brigade/optim/zero.h"

namespace brigade::optim {

// As hook_with_zero_step, or hook_with_zero_step_interleaved, with shard_buckets. REQUIRES:
// `zero` has no parameters that the model does not train, and the last bucket always comes.
std::shared_ptr<Hook> make_zero_step(std::shared_ptr<Hook> hook,
                                     std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                     bool interleaved);

}  // namespace brigade::optim
