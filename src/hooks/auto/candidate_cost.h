// What a candidate of `auto` would cost here, before it is tried.
#pragma once
#include <string>
#include <vector>

#include "hooks/auto/judge.h"
#include "hooks/auto/prediction.h"

namespace brigade {

// By the hook's text: how it sends, its bytes, and what its codec takes for a value on this
// CPU, measured in a few milliseconds (`measure`; else 0). Of a hook without a codec the
// coding counts as nothing and its bytes as a quarter: a trial will show.
cost::HookCost candidate_cost(const std::string& spec, bool measure);

// Who reduces what.
struct Reductions {
  int hosts = 1;
  int ranks = 1;
  std::vector<cost::ShapeList> buckets;
};

// What a step takes under each of `costs`, of which the first is allreduce's, from what was
// seen under that: the cost model, with a link that fits what was seen.
std::vector<double> predict_steps(const WindowTimes& exact, const Reductions& reductions,
                                  const std::vector<cost::HookCost>& costs);

}  // namespace brigade
