#include "plan/simulation/recorded_costs.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/hook_choice.h"
#include "exchange/chunks.h"

namespace brigade::tool {
namespace {

// Seconds for a value with two ranks, all stretches of the hook together.
struct Recorded {
  std::string_view name;
  double seconds_per_value;
  double bytes_per_value;
  bool halves;  // NCCL's own all-reduce, of halves
};

constexpr double kTera = 1e12;
// Bytes that a pass moves for a value, over what it was seen to move in a second. With two
// ranks: half encoded, half added up and encoded again, all decoded.
constexpr double coded(double encode, double decode_add, double decode) {
  return encode / 2 + (decode_add + encode) / 2 + decode;
}

// As docs/benchmarks.md has it: codecs at 64 MiB; PowerSGD's is all that a step of two
// ranks on one H200 takes with 64 MiB, halved: on the slow side.
constexpr std::array kRecorded{
    Recorded{"allreduce", 0, 4, false},
    Recorded{"noop", 0, 0, false},
    Recorded{"fp16", 6.0 / (3.80 * kTera) + 6.0 / (3.62 * kTera), 2, true},
    Recorded{"bf16", 6.0 / (3.79 * kTera) + 6.0 / (3.64 * kTera), 2, true},
    Recorded{"int8",
             coded(13.0 / (3.71 * kTera), 9.0 / (3.72 * kTera), 5.0 / (3.53 * kTera)),
             1.0 + 4.0 / 256, false},
    Recorded{"int4",
             coded(12.5 / (3.71 * kTera), 8.5 / (3.74 * kTera), 4.5 / (3.36 * kTera)),
             0.5 + 4.0 / 128, false},
    Recorded{"quantize_per_channel",
             coded(5.0 / (3.90 * kTera), 9.0 / (3.75 * kTera), 5.0 / (3.54 * kTera)),
             1.0 + 8.0 / 512, false},
    Recorded{"powersgd", 2.7e-3 / 2 / 16.78e6, 0, false},
    Recorded{"batched_powersgd", 4.2e-3 / 2 / 16.78e6, 0, false},
};

}  // namespace

std::vector<HookCost> h200_costs(const std::vector<std::string>& specs) {
  std::vector<HookCost> costs;
  for (const std::string& spec : specs) {
    const auto row = std::ranges::find(kRecorded, base_name(spec), &Recorded::name);
    if (row == kRecorded.end()) continue;
    HookCost cost{.spec = spec,
                  .kind = kind_of(row->name),
                  .seconds_per_value = row->seconds_per_value,
                  .bytes_per_value = row->bytes_per_value,
                  .tolerance = tolerance_of(spec)};
    if (row->halves) cost.kind = {Route::ring, 1, false};
    if (cost.kind.low_rank && spec.find("rounds=1") != std::string::npos)
      cost.kind.phases = 1;
    if (cost.kind.route == Route::all_to_all) cost.piece_values = kSegmentOnDevice;
    costs.push_back(cost);
  }
  return costs;
}

Cluster h200_cluster() {
  return {.latency = 20e-6,
          .inside_rate = 300e9,
          .inside_latency = 5e-6,
          .cores = 1,
          .shared_by = Sharing::rank,
          .message_seconds = 1e-6,
          .host_message_seconds = 1e-6,
          .nccl = true};
}

}  // namespace brigade::tool
