// What plan's arithmetic starts from, measured on this machine in a second or two: what
// each hook computes, what transport costs the CPU, how long a message takes.
#pragma once
#include <string>
#include <vector>

#include "bench/reduction.h"
#include "hooks/auto/prediction.h"

namespace brigade::tool {

using namespace cost;

struct Probe {
  Machine machine;
  std::vector<HookCost> hooks;  // in the order asked for
  int cores = 1;                // of this machine
};

// Runs two ranks over loopback. `specs` as choose_hooks gives them. CPU time counts, not
// the clock's, so other programs on the machine disturb little.
// On "cuda", where hooks and collectives share the GPU, what counts is the time by which a
// hook takes longer than its bytes alone.
Probe probe(const std::vector<std::string>& specs, const std::string& device = "cpu");

// Cores that a rank has to itself when `ranks` share this machine; at least 1.
int cores_for(int ranks);

}  // namespace brigade::tool
