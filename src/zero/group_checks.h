// What all forms of ZeRO check before they take parameters.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "brigade/zero.h"

namespace brigade::optim {

// Gives one line for the optimizer and one for each parameter.
std::string describe(const NamedParameters& parameters, const std::string& optimizer);
// Collective. Throws MismatchError, with the first line that differs, on every rank, unless
// all have the same descriptions.
void agree_on_groups(const ProcessGroup& group, const std::string& description);

// Throws ConfigError for what no form of ZeRO takes. `names` and `tensors`: what other
// groups have already.
void check_groups(const std::vector<ZeroGroup>& groups, const ProcessGroup& group,
                  std::set<std::string> names, std::set<const c10::TensorImpl*> tensors);
void check_root(int to, const ProcessGroup& group);

}  // namespace brigade::optim
