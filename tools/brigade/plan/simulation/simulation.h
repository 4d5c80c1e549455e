// A training step of all ranks of a cluster, event by event.
//
// Each rank has its backward pass, which brings bucket after bucket, and a thread for each
// station of the engine; these and transport need cores. A bucket goes in pieces. A piece
// computes and waits for its collective, stage by stage, and a collective ends when all who
// take part have sent what it needs through their host's link. Threads and links serve in
// the order of asking; cores serve messages first, and what computes in turns.
#pragma once
#include <vector>

#include "plan/simulation/stages.h"

namespace brigade::tool {

struct SimulatedStep {
  double seconds = 0;          // until the last rank has all its gradients
  double exposed_seconds = 0;  // of that, beyond what the slowest rank computes
  double link_seconds = 0;     // that the busiest host's link was busy
  double cpu_seconds = 0;      // that cores worked for a rank, on average
  double wire_bytes = 0;       // sent by a rank, on average
  double host_bytes = 0;       // sent by a host to others, on average
  int64_t events = 0;
};

SimulatedStep simulate(const Cluster& cluster, const HookCost& cost,
                       const std::vector<BucketLoad>& buckets);

}  // namespace brigade::tool
