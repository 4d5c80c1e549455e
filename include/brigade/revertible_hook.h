// SPDX-License-Identifier: BSD-3-Clause
// For hooks that keep much from step to step: how elastic training takes back a step that
// failed without a copy of all that in each step.
//
// A hook without it is asked for its state() after each step. With it, the hook writes what
// changes into other memory than what it had at the last commit(), so that going back is a
// change of pointers.
#pragma once
#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// A base class beside Hook.
class BRIGADE_API RevertibleHook {
 public:
  virtual ~RevertibleHook() = default;
  // From now on take_back() goes back to the hook's present state. False: it cannot be
  // done, as with a hook around one that is not revertible; state() is used then. Called
  // between steps.
  virtual bool commit() = 0;
  // All that the hook keeps is again as it was at the last commit(), bit for bit. Called
  // when no bucket is under way. REQUIRES: commit() has returned true before.
  virtual void take_back() = 0;
};

// For hooks around others: the same for any inner hook. One that is not revertible must not
// keep anything.
inline bool commit_hook(Hook& hook) {
  if (auto* revertible = dynamic_cast<RevertibleHook*>(&hook)) return revertible->commit();
  const HookState state = hook.state();
  return state.tensors.empty() && state.values.empty();
}
inline void take_back_hook(Hook& hook) {
  auto* revertible = dynamic_cast<RevertibleHook*>(&hook);
  revertible ? revertible->take_back() : hook.reset();
}

}  // namespace brigade
