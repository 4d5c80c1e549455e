// From what a probe saw of a hook to what it costs: arithmetic only.
#pragma once
#include <string>

#include "hooks/auto/prediction.h"

namespace brigade::tool {

using namespace cost;

// One hook at one size.
struct ProbeSample {
  double values = 0;
  double cpu_seconds = 0;   // of a step, all threads of a rank
  double base_seconds = 0;  // of that, without a hook: noop's
  double wire_bytes = 0;
  double collectives = 0;
  double buckets = 0;
  double decode_share = 0;
  double spread = 0;
};
// From a small and a large sample: what a step costs once, and what each value costs.
HookCost cost_of(const std::string& spec, const Machine& machine, const ProbeSample& small,
                 const ProbeSample& large);

}  // namespace brigade::tool
