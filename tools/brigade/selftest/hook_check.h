// Holds a hook to what it promises: several buckets over several steps, in real workers,
// against the exact mean in float64.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "common/workers.h"

namespace brigade::tool {

// One hook, and what its result must be.
struct HookCheck {
  std::string name;
  std::function<std::shared_ptr<Hook>()> make;
  // Largest error of a parameter's gradient in one step, relative to what the ranks put in
  // (Frobenius norms). Negative: every rank must get its own gradient back, bit by bit.
  double tolerance = 0;
  // Gradients of rank 2 instead of random ones: what a low-rank hook must give back.
  bool low_rank = false;
};

// Every row of the table of hooks, and a few compositions.
std::vector<HookCheck> hook_checks();

struct HookCheckResult {
  std::string name;
  std::string failure;  // what is wrong and where; empty: the hook keeps its promise
  double error = 0;     // the largest seen on any rank
  double tolerance = 0;
  int buckets = 0;
  int steps = 0;
  double sent = 0;  // of what came in, in bytes
  double seconds = 0;
  bool passed() const { return failure.empty(); }
};

// Collective; the result is equal on all ranks. Whatever the hook throws is a failure, not
// an exception.
HookCheckResult check_hook(const Worker& worker, const HookCheck& check);

}  // namespace brigade::tool
