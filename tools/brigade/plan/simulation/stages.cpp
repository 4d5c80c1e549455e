#include "plan/simulation/stages.h"

#include <algorithm>
#include <cmath>

namespace brigade::tool {
namespace {

// Of one all-reduce: its bytes for a byte of payload, its latency, and what its messages
// cost a rank.
struct AllReduce {
  double bytes, wait, message_seconds;
};

AllReduce ring(const Cluster& c) {
  const double ranks = c.ranks(), between = c.hosts > 1 ? c.hosts - 1 : 0;
  return {2 * (ranks - 1) / ranks,
          2 * (between * c.latency + (ranks - 1 - between) * c.inside_latency),
          c.nccl ? 0 : 2 * (ranks - 1) * c.ring_message_seconds};
}

// Two trees over the hosts, each for half of the bytes; inside a host a chain.
AllReduce tree(const Cluster& c) {
  const double depth = std::ceil(std::log2(std::max(2, c.hosts)));
  return {2, 2 * (depth * c.latency + (c.ranks_per_host - 1) * c.inside_latency), 0};
}

AllReduce all_reduce(const Cluster& c, double payload) {
  const AllReduce one = ring(c);
  if (!c.nccl || c.hosts < 2 || c.link_bits <= 0) return one;
  const AllReduce other = tree(c);
  const auto seconds = [&](const AllReduce& way) {
    return way.wait + way.bytes * payload * 8 / (c.link_bits * kGoodput);
  };
  return seconds(other) < seconds(one) ? other : one;
}

// A codec's work, where encoding all values is one: with two ranks half of them are
// encoded, half decoded and added, half encoded again as means, all decoded.
constexpr double kPair = 2.5;

// Where all ranks share cores every message of a ring waits for one, behind all the others.
bool plays_rounds(const Cluster& c) { return !c.nccl && c.shared_by == Sharing::machine; }
Stage one_round(Stage ring, int ranks) {
  ring.rounds = 2 * (ranks - 1);
  for (double* part :
       {&ring.outside_per_byte, &ring.inside_per_byte, &ring.wait, &ring.message_seconds}) {
    *part /= ring.rounds;
  }
  return ring;
}

std::vector<Stage> rings(const Cluster& c, const HookCost& cost, double payload) {
  const int phases = std::max(1, cost.kind.phases);
  const AllReduce way = all_reduce(c, payload / phases);
  const double ranks = c.ranks();
  // A plain sum's work is what the ring adds. Others' is their own, of any number of ranks.
  const bool own = cost.kind.low_rank || cost.kind.sparse;
  const double more = own ? 1 : 2 * (ranks - 1) / ranks;
  Stage each{.work = more * (1 - cost.decode_share) / phases,
             .collective = true,
             .together = true,
             .one_of_host = true,
             .outside_per_byte = c.hosts > 1 ? way.bytes / phases : 0,
             .inside_per_byte = way.bytes / phases,
             .wait = way.wait,
             .message_seconds = way.message_seconds};
  if (plays_rounds(c)) each = one_round(each, c.ranks());
  std::vector<Stage> stages(static_cast<size_t>(phases), each);
  stages.push_back({.work = more * cost.decode_share});
  return stages;
}

// Of a codec that picks some of the values, picking is this part of the work, and adding
// up next to nothing.
constexpr double kPicking = 0.8;

std::vector<Stage> two_phase(const Cluster& c, bool sparse) {
  const double ranks = c.ranks(), others = (ranks - 1) / ranks;
  const double outside = (ranks - c.ranks_per_host) / ranks;
  const Stage phase{.collective = true,
                    .outside_per_byte = outside,
                    .inside_per_byte = others - outside,
                    .wait = c.hosts > 1 ? c.latency : c.inside_latency,
                    .message_seconds = (ranks - 1) * c.message_seconds};
  std::vector<Stage> stages(2, phase);
  stages[0].work = sparse ? kPicking * others : others / kPair;
  stages[1].work = sparse ? kPicking / ranks : 1 / kPair;
  stages.push_back({.work = sparse ? 1 - kPicking : 1 / kPair});
  return stages;
}

// Exact sums inside a host, the two phases among ranks of equal place, each for its part,
// and the encoded means inside the host.
std::vector<Stage> by_host(const Cluster& c, bool sparse) {
  const double part = 1.0 / c.ranks_per_host, mates = c.ranks_per_host - 1;
  const double others = (c.hosts - 1.0) / c.hosts;
  const Stage inside{.collective = true,
                     .among = Among::host,
                     .wait = c.inside_latency,
                     .message_seconds = mates * c.host_message_seconds};
  const Stage between{.collective = true,
                      .among = Among::peers,
                      .outside_per_byte = others * part,
                      .wait = c.latency,
                      .message_seconds = (c.hosts - 1) * c.host_message_seconds};
  std::vector<Stage> stages{inside, between, between, inside, {}};
  stages[0].takes_turn = stages[2].gives_turn_back = true;
  stages[0].inside_per_value = mates * part * sizeof(float);
  // Adding is half of a codec's work.
  const double adding = mates * part / 2 / kPair;
  stages[1].work = adding + part * (sparse ? kPicking * others : others / kPair);
  stages[2].work = part * (sparse ? kPicking / c.hosts : 1 / kPair);
  stages[3].inside_per_byte = mates * part;
  stages[4].work = sparse ? 1 - kPicking : 1 / kPair;
  return stages;
}

}  // namespace

std::vector<Stage> stages_of(const Cluster& cluster, const HookCost& cost, double payload) {
  if (cluster.ranks() < 2 || cost.kind.route == Route::none) return {};
  if (cost.kind.route == Route::ring) return rings(cluster, cost, payload);
  return goes_by_host(cost, cluster.hosts, cluster.ranks_per_host)
             ? by_host(cluster, cost.kind.sparse)
             : two_phase(cluster, cost.kind.sparse);
}

}  // namespace brigade::tool
