// What is simulated: hosts with ranks, what they compute with, and what is between them.
#pragma once
#include <cstdint>

#include "hooks/auto/prediction.h"

namespace brigade::tool {

enum class Sharing : std::uint8_t { rank, host, machine };

struct Cluster {
  int hosts = 2;
  int ranks_per_host = 1;

  // What a host can send to others, in bits a second, each way; 0: all that is asked.
  double link_bits = 0;
  double latency = 0;  // seconds, of a message between hosts
  // What a rank can send to others of its host, in bytes a second; 0: all that is asked.
  double inside_rate = 0;
  double inside_latency = 0;

  // What hooks compute with, and who shares that. A GPU of its own is one core for a rank;
  // namespaces of one machine share all its cores.
  int cores = 1;
  Sharing shared_by = Sharing::host;
  // What a core does for a byte sent and received, and for a message: with Gloo one that
  // the next one of a ring waits for, with NCCL one to each of many.
  double transport_seconds_per_byte = 0;
  double message_seconds = 0;
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
Cluster cluster_here(const cost::Machine& machine, int cores, int ranks_per_host);

}  // namespace brigade::tool
