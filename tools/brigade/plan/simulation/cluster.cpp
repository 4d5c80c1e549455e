#include "plan/simulation/cluster.h"

#include <algorithm>

namespace brigade::tool {
namespace {

// Of Linux's scheduler, roughly: a thread that others wait for is changed for one of them.
constexpr double kTurn = 1e-3;

}  // namespace

Cluster cluster_here(const cost::Machine& machine, const NetworkCost& network, int cores,
                     int ranks_per_host) {
  // What cores do for a message is part of how long it takes.
  const double waits = std::max(0.0, machine.latency - network.ring_message_seconds);
  return {.ranks_per_host = ranks_per_host,
          .latency = waits,
          .inside_latency = waits,
          .cores = cores,
          .turn = kTurn,
          .transport_seconds_per_byte = machine.transport_seconds_per_byte,
          .link_seconds_per_byte = network.link_seconds_per_byte,
          .message_seconds = network.message_seconds,
          .host_message_seconds = network.host_message_seconds,
          .ring_message_seconds = network.ring_message_seconds};
}

}  // namespace brigade::tool
