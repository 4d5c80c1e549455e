// Below which link speed a hook is quicker than all-reduce, from times over loopback.
#pragma once
#include <optional>
#include <string>

namespace brigade::tool {

// The cost of one step.
struct StepCost {
  double seconds = 0;  // over loopback, where no link limits it
  double bytes = 0;    // what a rank sends; each rank stands for a host
};

// Returns bits a second. A step is assumed to last its time over loopback plus the link's
// time for its bytes, so `hook` is quicker where
//   speed < 8 (all_reduce.bytes - hook.bytes) / (hook.seconds - all_reduce.seconds)
// Infinity: it is quicker on every link. None: on no link, because it sends no less.
std::optional<double> pays_below(const StepCost& hook, const StepCost& all_reduce);

// Two digits, "12 Gbit/s": a speed from measured times is not known more exactly.
std::string rough_rate_text(double bits_per_second);

}  // namespace brigade::tool
