// How long a training step takes under a hook, from what was measured: pure arithmetic, no
// torch and no clock.
//
// Vocabulary
//   rank      one process of W; G of them on each of H hosts, which share the host's link.
//   bucket    gradients that are reduced together, in the order in which backward() brings
//             them.
//   piece     what goes through a hook by itself: a segment of a bucket, or all of it.
//   phase     a collective of a piece. A hook computes before, between and after them.
//   transport what sending and receiving costs the CPU, copies and system calls.
//   exposed   the part of the communication that backward() does not hide.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::cost {

// How a hook's bytes travel, which decides what of them crosses between hosts.
enum class Route : std::uint8_t {
  none,
  ring,        // all-reduce: every rank sends to the next one only
  all_to_all,  // two phases: every rank sends a part to every other
};

// What a hook does, by its row of the table.
struct HookKind {
  Route route = Route::all_to_all;
  int phases = 2;
  bool low_rank = false;    // its bytes follow from the shapes of the parameters
  bool knows_hosts = true;  // an all-to-all that sends less where ranks share hosts
  bool sparse = false;      // picks some of the values
};
// `name` as in the table; one that is not known here is taken for a two-phase codec.
HookKind kind_of(std::string_view name);

// Of one hook with two ranks, measured.
struct HookCost {
  std::string spec;
  HookKind kind;
  double step_seconds = 0;          // CPU time of the hook itself, once a step
  double seconds_per_value = 0;     // and for each value; transport is no part of it
  double decode_share = 0.3;        // of that, after the last phase
  double bytes_per_value = 0;       // payload; of low-rank hooks not used
  double piece_values = 0;          // length of a piece at most; 0: a bucket is one
  double piece_values_by_host = 0;  // the same where ranks share hosts; 0: as elsewhere
  double tolerance = 0;             // the table's: how far one step may be off
  double spread = 0;                // of the measurements, relative
  double others_load = 0;           // share of the machine's cores that other programs used
};

struct Machine {
  // Of the CPU, for a byte sent and one received. 0 where a GPU does it beside its compute.
  double transport_seconds_per_byte = 0;
  double latency = 0;  // seconds, of one message
};

struct BucketLoad {
  double values = 0;
  double payload_bytes = 0;  // a rank sends 2 (W - 1) / W of it
};

struct Job {
  int hosts = 2;
  int ranks_per_host = 1;
  double link_bits = 0;        // a second, of a host, each way; 0: nothing but the CPU
  double compute_seconds = 0;  // of a step without communication
  double forward_share = 1.0 / 3;
  bool compute_on_cpu = false;  // then hooks compete with it for cores
  bool hooks_on_gpu = false;    // they were measured there
  int cores_per_rank = 1;
  int ranks() const { return hosts * ranks_per_host; }
};

using ShapeList = std::vector<std::vector<int64_t>>;

// Of a low-rank hook, by its text: the 2 of "powersgd:rank=2".
int approximation_rank(const std::string& spec);

// A bucket of parameters of these shapes, and what the hook sends of it. `rank` is the
// approximation rank of a low-rank hook.
BucketLoad load_of(const ShapeList& shapes, const HookCost& cost, int rank);
// Whether a hook makes a difference between ranks of its host and of others there.
bool goes_by_host(const HookCost& cost, int hosts, int ranks_per_host);
// In how many pieces a bucket goes, at least 1.
double pieces_of(const HookCost& cost, double values, bool by_host);
// The buckets of DistributedDataParallel's defaults.
std::vector<BucketLoad> buckets_of(const ShapeList& shapes, const HookCost& cost, int rank);

struct Prediction {
  double step_seconds = 0;
  double exposed_seconds = 0;  // step less compute
  double link_seconds = 0;     // what the link alone needs
  double cpu_seconds = 0;      // what a rank computes for hook and transport
  double wire_bytes = 0;       // sent by a rank
};
Prediction predict(const Job& job, const Machine& machine, const HookCost& cost,
                   const std::vector<BucketLoad>& buckets);

// Payload bytes over a link of Ethernet with TCP: 1448 of 1514.
inline constexpr double kGoodput = 1448.0 / 1514.0;

}  // namespace brigade::cost
