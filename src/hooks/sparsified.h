// Hooks that send a few of the values, as they are, and keep the rest for later steps.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

inline constexpr double kDefaultRatio = 0.01;

// The share `ratio` of the values, those of the largest magnitudes, by the two-phase
// exchange: 6 bytes each. `flat`: as in TwoPhase. Throws ConfigError unless 0 < ratio <= 1.
std::shared_ptr<Hook> make_top_k(double ratio, bool flat);
// The share `ratio` of the values, drawn anew in each step, the same on all ranks: one
// all-reduce, no places. The same seed gives the same draws. Throws as make_top_k.
std::shared_ptr<Hook> make_random_k(double ratio, uint64_t seed);

}  // namespace brigade
