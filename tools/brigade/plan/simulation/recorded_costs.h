// What hooks cost on a GPU that is not here.
#pragma once
#include <string>
#include <vector>

#include "hooks/auto/prediction.h"
#include "plan/simulation/cluster.h"

namespace brigade::tool {

using namespace cost;

// Of an H200, from docs/benchmarks.md: what each codec's kernels take. Hooks that were not
// measured there are left out of `specs`.
std::vector<HookCost> h200_costs(const std::vector<std::string>& specs);
// Hosts of such GPUs, which see each other inside a host through NVLink.
Cluster h200_cluster();

}  // namespace brigade::tool
