// From which link speed down a hook is quicker than all-reduce, by times over loopback.
#pragma once
#include <optional>
#include <string>

namespace brigade::tool {

// Of one step.
struct StepCost {
  double seconds = 0;  // over loopback, where no link limits it
  double bytes = 0;    // what a rank sends; each rank stands for a host
};

// In bits a second. A step is taken to last its time over loopback, and on top what the
// link needs for its bytes, so `hook` is the quicker one where
//   speed < 8 (all_reduce.bytes - hook.bytes) / (hook.seconds - all_reduce.seconds)
// Infinity: on every link, for it is quicker already. None: nowhere, for it sends no less.
std::optional<double> pays_below(const StepCost& hook, const StepCost& all_reduce);

// "12 Gbit/s": two digits. A speed that follows from measured times is not known better.
std::string rough_rate_text(double bits_per_second);

}  // namespace brigade::tool
