#include "plan/cost.h"

#include <algorithm>

#include "common/hook_choice.h"
#include "exchange/chunks.h"

namespace brigade::tool {

HookCost cost_of(const std::string& spec, const Machine& machine, const ProbeSample& small,
                 const ProbeSample& large) {
  const auto own = [&](const ProbeSample& sample) {
    return std::max(0.0, sample.cpu_seconds - sample.base_seconds -
                             sample.wire_bytes * machine.transport_seconds_per_byte);
  };
  HookCost cost{.spec = spec, .kind = kind_of(base_name(spec))};
  if (cost.kind.low_rank && spec.find("rounds=1") != std::string::npos)
    cost.kind.phases = 1;
  if (cost.kind.route == Route::none) {
    cost.tolerance = tolerance_of(spec);
    return cost;
  }
  cost.seconds_per_value =
      std::max(0.0, (own(large) - own(small)) / (large.values - small.values));
  cost.step_seconds = own(small) - cost.seconds_per_value * small.values;
  if (cost.step_seconds < 0 || cost.seconds_per_value == 0) {
    // Noise: the large sample alone then.
    cost.step_seconds = 0;
    cost.seconds_per_value = own(large) / large.values;
  }
  cost.bytes_per_value = large.wire_bytes / large.values;  // two ranks: 2 (W - 1) / W is 1
  const double pieces = large.collectives / cost.kind.phases;
  cost.piece_values = pieces > large.buckets ? large.values / pieces : 0;
  // Those who go in pieces by the two-phase exchange go in shorter ones by host.
  if (cost.piece_values > 0 && cost.kind.knows_hosts)
    cost.piece_values_by_host = kSegmentByHost;
  // Of buckets that go in pieces the stations' times are not told apart.
  if (cost.piece_values == 0) cost.decode_share = std::clamp(large.decode_share, 0.05, 0.6);
  cost.tolerance = tolerance_of(spec);
  cost.spread = large.spread;
  return cost;
}

}  // namespace brigade::tool
