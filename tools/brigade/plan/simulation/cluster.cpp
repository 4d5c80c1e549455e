#include "plan/simulation/cluster.h"

namespace brigade::tool {
namespace {

// What a message of a ring costs cores, on both sides together, in units of how long it
// takes where nothing else runs. On two cores it was 2 to 3 with four ranks, 1 to 1.5 with
// sixteen, who are woken up for several at a time.
constexpr double kWork = 1.5;

}  // namespace

Cluster cluster_here(const cost::Machine& machine, int cores, int ranks_per_host) {
  return {.ranks_per_host = ranks_per_host,
          .latency = machine.latency,
          .inside_latency = machine.latency,
          .cores = cores,
          .transport_seconds_per_byte = machine.transport_seconds_per_byte,
          .message_seconds = kWork * machine.latency};
}

}  // namespace brigade::tool
