// The hooks of the table, with the promise of each for one step.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "hooks/bag.h"

namespace brigade::testing {

// A low-rank hook promises the mean of gradients of that rank, and is tested with those.
struct HookCase {
  std::string spec;
  double tolerance;  // for one step, as Rig::error measures it
  Gradients kind;
};

inline constexpr double kLowRankTolerance = 1e-5;
// For hooks that send in later steps what they leave out in one: no bound, except against
// explosions. Another case compares their sums over steps with the mean.
inline constexpr double kOwing = 3;

// Every row. Low-rank hooks compress from the first step, and hooks that send a share of
// the values send all.
inline std::vector<HookCase> table_cases() {
  std::vector<HookCase> list;
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    if (std::ranges::count(entry.options, "ratio") > 0) {
      list.push_back({name + ":ratio=1", kLowRankTolerance, {}});
      continue;
    }
    if (std::ranges::count(entry.options, "start") == 0) {
      list.push_back({name, entry.tolerance, {}});
      continue;
    }
    const bool whole_bucket = name.rfind("batched", 0) == 0;
    const Gradients kind{whole_bucket ? Structure::square : Structure::matrix, 2};
    list.push_back({name + ":start=0,rank=2", kLowRankTolerance, kind});
  }
  return list;
}

// Leaves out the hook that averages nothing.
inline void leave_out_noop(std::vector<HookCase>& list) {
  std::erase_if(list, [](const HookCase& c) { return c.spec == "noop"; });
}

}  // namespace brigade::testing
