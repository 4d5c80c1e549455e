// Makes ZeRO's hooks for a model that a DdpCore does not drive, such as Python's DDP.
#pragma once
#include <memory>
#include <vector>

#include "brigade/hook.h"
#include "brigade/zero.h"

namespace brigade::optim {

// As hook_with_zero_step, or hook_with_zero_step_interleaved. Without `shard_buckets` state
// moves when two backward passes have had the same buckets. REQUIRES: `zero` has no
// parameters that the model does not train, and the last bucket always comes.
std::shared_ptr<Hook> make_zero_step(std::shared_ptr<Hook> hook,
                                     std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                     bool interleaved, bool shard_buckets);

// The hook "zero" as apply_zero_in_backward attaches it. Collective. `owns_gradients`:
// nobody else writes into the parameters' grad(). REQUIRES: the groups have all parameters
// that the model trains, and no others; their gradients are dense.
std::shared_ptr<ZeroHook> make_zero_hook(std::vector<ZeroGroup> groups, ProcessGroup group,
                                         bool owns_gradients);

}  // namespace brigade::optim
