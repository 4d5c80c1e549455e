// What is simulated: hosts with ranks, what they compute with, and what is between them.
#pragma once
#include <cstdint>

#include "hooks/auto/prediction.h"
#include "plan/simulation/network_probe.h"

namespace brigade::tool {

enum class Sharing : std::uint8_t { rank, host, machine };

struct Cluster {
  int hosts = 2;
  int ranks_per_host = 1;

  // What a host can send to others, in bits a second, each way; 0: all that is asked.
  double link_bits = 0;
  double link_burst = 0;  // bytes that go through at once after a pause
  double latency = 0;     // seconds, of a message between hosts
  // What a rank can send to others of its host, in bytes a second; 0: all that is asked.
  double inside_rate = 0;
  double inside_latency = 0;

  // What hooks compute with, and who shares that. A GPU of its own is one core for a rank;
  // namespaces of one machine share all its cores.
  int cores = 1;
  Sharing shared_by = Sharing::host;
  // Seconds for which a thread computes at most while others wait for a core; 0: to the
  // end of what it does.
  double turn = 0;
  // What cores do, at both ends together, for a byte to a rank of the same host, for one to
  // another host, and for a message whatever its length: of an exchange among all, of one
  // that knows hosts, and of a ring.
  double transport_seconds_per_byte = 0;
  double link_seconds_per_byte = 0;
  double message_seconds = 0;
  double host_message_seconds = 0;
  double ring_message_seconds = 0;
  // NCCL chooses between a ring and trees; Gloo has a ring.
  bool nccl = false;

  double compute_seconds = 0;  // of a step without communication
  double forward_share = 1.0 / 3;
  bool compute_takes_cores = true;  // or a device of its own does it

  // Stragglers: the last rank computes so many times as long; and each rank's computing
  // deviates from step to step by about this share, by a fixed seed.
  double straggler = 1;
  double jitter = 0;

  int ranks() const { return hosts * ranks_per_host; }
};

// Hosts like this machine, as it was measured, whose ranks compute on its cores.
Cluster cluster_here(const cost::Machine& machine, const NetworkCost& network, int cores,
                     int ranks_per_host);

}  // namespace brigade::tool
