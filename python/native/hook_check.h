// Finds out that a hook was set on some ranks only. The ranks without it know nothing of
// hooks: they average their first bucket over the model's group, and wait there for the
// ranks with the hook, which would wait for them elsewhere.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace brigade {
class ProcessGroup;
}

namespace brigade::python {

// Collective. Returns when every rank has come to this `place`; a name may be used once.
// Calls `look` now and then, which may throw. Throws TimeoutError that names the ranks that
// have not come within the group's time limit. Ctrl-C interrupts it. Needs no GIL.
void meet(const ProcessGroup& group, const std::string& place,
          const std::function<void()>& look);

// Compares the hooks that the ranks of a model's group have set, through the group's store.
// Not thread-safe.
class HookCheck {
 public:
  // Writes that this rank has set `hook`; waits for nobody. `model` is equal on all ranks
  // and tells models apart, as far as that is possible; `hook` is compared.
  HookCheck(c10d::ProcessGroup& group, const std::string& model, std::string hook);
  ~HookCheck();
  HookCheck(const HookCheck&) = delete;
  HookCheck& operator=(const HookCheck&) = delete;

  // Collective over the ranks that have set a hook, at the first bucket after that. Returns
  // when all ranks of the group have set one. Throws MismatchError, with ranks and hooks,
  // when the hooks differ or some ranks are in a backward pass without the new one. `busy`,
  // if given, returns the ranks that are in a pass with their former hook. When a rank has
  // not set a hook within seconds, averages a copy of `bucket`, which finds ranks without
  // any hook. Waits for slower ranks up to the group's time limit. Ctrl-C interrupts it.
  // Needs no GIL.
  void check(c10d::ProcessGroup& group, const at::Tensor& bucket,
             const std::function<std::vector<int>()>& busy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::python
