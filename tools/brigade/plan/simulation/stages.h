// A hook's way through its collectives, on a cluster of a given form.
#pragma once
#include <vector>

#include "hooks/auto/prediction.h"
#include "plan/simulation/cluster.h"

namespace brigade::tool {

using namespace cost;

// Who takes part in a collective.
enum class Among : std::uint8_t {
  all,
  host,   // the ranks of a host
  peers,  // the ranks of equal place on all hosts
};

// A stretch of computing and the collective behind it. The bytes are those of a rank, for a
// byte of the piece's payload, or for a value of it; the last stage has no collective.
struct Stage {
  double work = 0;  // as a share of what the hook computes for the piece with two ranks
  bool collective = false;
  Among among = Among::all;
  // Nobody can begin before all are there, as in a ring. Else each sends when it is ready.
  bool together = false;
  // By all ranks, or by the last of each host only: in a ring one of them sends to the
  // next.
  bool one_of_host = false;
  double outside_per_byte = 0;  // to other hosts
  double inside_per_byte = 0;   // to ranks of the same host
  double inside_per_value = 0;
  double wait = 0;             // seconds of latency: messages that follow one another
  double message_seconds = 0;  // what cores do for its messages, besides their bytes
  // Of a ring: all of this happens so often, each time when the one before has sent.
  int rounds = 1;
  // A piece begins here only with one of kSegmentsAtOnce turns, or gives its turn back.
  bool takes_turn = false;
  bool gives_turn_back = false;
};

// `payload` is a typical piece's, by which NCCL chooses between a ring and trees.
std::vector<Stage> stages_of(const Cluster& cluster, const HookCost& cost, double payload);

}  // namespace brigade::tool
