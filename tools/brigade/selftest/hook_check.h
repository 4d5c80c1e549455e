// Checks that a hook keeps its promise: several buckets over several steps, in real
// workers, against the exact mean in float64.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "common/workers.h"

namespace brigade::tool {

// One hook, and the result that is expected.
struct HookCheck {
  std::string name;
  std::function<std::shared_ptr<Hook>()> make;
  // Largest error of a parameter's gradient in one step, relative to the ranks' inputs
  // (Frobenius norms). Negative: every rank must get its own gradient back, bit by bit.
  double tolerance = 0;
  // Uses gradients of rank 2, which a low-rank hook must reproduce, not random ones.
  bool low_rank = false;
};

// Every row of the table of hooks, and a few compositions.
std::vector<HookCheck> hook_checks();

struct HookCheckResult {
  std::string name;
  std::string failure;  // the fault and its place; empty: the hook keeps its promise
  double error = 0;     // the largest on any rank
  double tolerance = 0;
  int buckets = 0;
  int steps = 0;
  double sent = 0;  // share of the input bytes
  double seconds = 0;
  bool passed() const { return failure.empty(); }
};

// Collective; the result is equal on all ranks. An exception of the hook counts as a
// failure and is not passed on.
HookCheckResult check_hook(const Worker& worker, const HookCheck& check);

}  // namespace brigade::tool
