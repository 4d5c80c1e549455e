// What the forms of ZeRO share: the keys of their state, and what they check.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "brigade/zero/zero.h"

namespace brigade::optim {

// Beside what the optimizer of a group calls its own.
inline constexpr const char* kNamesKey = "parameters";  // all of the group's
inline constexpr const char* kOwnersKey = "owners";     // of all parameters, by index

std::string group_prefix(size_t group);
std::string names_of(const NamedParameters& parameters);
// Throws ConfigError unless the state, of one group, is of these parameters.
void check_names(const OptimizerState& state, const NamedParameters& here);

// One line for the optimizer and one for each parameter.
std::string describe(const NamedParameters& parameters, const std::string& optimizer);
// Collective. Throws MismatchError on every rank unless all have the same descriptions.
void agree_on_groups(const ProcessGroup& group, const std::string& description);

// Throws ConfigError. `names` and `tensors`: what other groups have.
void check_groups(const std::vector<ZeroGroup>& groups, const ProcessGroup& group,
                  std::set<std::string> names, std::set<const c10::TensorImpl*> tensors);
void check_root(int to, const ProcessGroup& group);

// Collective. All ranks' states in one on rank `to`, in host memory, copied.
OptimizerState consolidated(const ProcessGroup& group, const OptimizerState& mine, int to);

}  // namespace brigade::optim
