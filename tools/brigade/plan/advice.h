// Which hook to use, and how sure that is.
#pragma once
#include <string>
#include <vector>

#include "hooks/auto/prediction.h"

namespace brigade::tool {

using namespace cost;

// A hook with what it would cost, and what it would at the ends of the doubt.
struct Candidate {
  std::string spec;
  double tolerance = 0;  // negative: the result is no mean, and the hook is never chosen
  Prediction likely, fast, slow;
};

enum class Sureness : std::uint8_t { sure, fairly_sure, not_sure };
std::string_view text_of(Sureness sureness);

struct Advice {
  size_t choice = 0;  // index of the candidate
  double gain = 0;    // share of the baseline's step time that it saves
  Sureness sureness = Sureness::sure;
};

// A coarser hook must save this share of the step time of a more exact one.
inline constexpr double kWorthwhile = 0.10;

// From the most exact to the coarsest, moving on only for a gain of 10 % or more; batched
// PowerSGD only where PowerSGD is no candidate.
// REQUIRES: the first candidate is the baseline, allreduce.
Advice advise(const std::vector<Candidate>& candidates);

// How far predictions may be off, as a share of what communication costs, and why.
struct Doubt {
  double share = 0;
  std::vector<std::string> reasons;
};
Doubt doubt_of(const Job& job, const HookCost& cost);

// The prediction, and those with everything but compute dearer or cheaper by the doubt.
Candidate candidate_of(const Job& job, const Machine& machine, const HookCost& cost,
                       const ShapeList& shapes);

// The fastest link, in bits a second, at which something else than the baseline is advised;
// 0: none from 1 Mbit/s to 400 Gbit/s.
double pays_below(const Job& job, const Machine& machine,
                  const std::vector<HookCost>& costs, const ShapeList& shapes);

}  // namespace brigade::tool
