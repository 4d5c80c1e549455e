// plan --simulate: many ranks, on several numbers of hosts and several links.
#pragma once
#include <nlohmann/json.hpp>

#include "plan/advice.h"
#include "plan/simulation/cluster.h"

namespace brigade::tool {

struct Sweep {
  Cluster cluster;  // hosts and link_bits are filled in
  std::vector<int> hosts;
  std::vector<double> links;    // bits a second
  std::vector<HookCost> hooks;  // allreduce first
  ShapeList shapes;
};

// Plays a step of every hook on every pair of hosts and link, prints what is advised for
// each, or for a single pair every hook, and up to which link something saves 10 %. Gives
// {"settings": [...], "pays_below_bits": {...}, "pairs", "pairs_that_pay"}.
nlohmann::json run_sweep(const Sweep& sweep);

}  // namespace brigade::tool
