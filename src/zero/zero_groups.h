// The checks that all forms of ZeRO make of their parameter groups, and ZeRO's hooks.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "brigade/zero.h"

namespace brigade::optim {

// Returns one line for the optimizer and one for each parameter.
std::string describe(const NamedParameters& parameters, const std::string& optimizer);
// Collective. Throws MismatchError, with the first line that differs, on every rank, unless
// all have the same descriptions.
void check_same_groups(const ProcessGroup& group, const std::string& description);

// Throws ConfigError if no form of ZeRO takes them. `names`, `tensors`: of earlier groups.
void check_groups(const std::vector<ZeroGroup>& groups, const ProcessGroup& group,
                  std::set<std::string> names, std::set<const c10::TensorImpl*> tensors);
void check_root(int to, const ProcessGroup& group);

// Makes ZeRO's hooks for a model that a DdpCore does not drive, such as Python's DDP.

// Makes the hook of hook_with_zero_step, or of hook_with_zero_step_interleaved. Without
// `shard_buckets` state moves when two backward passes have had the same buckets. REQUIRES:
// `zero` has no parameters that the model does not train, and the last bucket always comes.
std::shared_ptr<Hook> make_zero_step(std::shared_ptr<Hook> hook,
                                     std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                     bool interleaved, bool shard_buckets);

// Makes the hook "zero" as apply_zero_in_backward attaches it. Collective.
// `owns_gradients`: only this hook writes into the parameters' grad(). REQUIRES: the groups
// have all parameters that the model trains, and no others; their gradients are dense.
std::shared_ptr<ZeroHook> make_zero_hook(std::vector<ZeroGroup> groups, ProcessGroup group,
                                         bool owns_gradients);

}  // namespace brigade::optim
