// Finds out that a hook was set on some ranks only. The ranks without it know nothing of
// hooks: they average their first bucket over the model's group, and wait there for the
// ranks with it, which would wait for them somewhere else.
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

// Collective. Returns when every rank has come to the place of that name, each place once.
// Calls `look` now and then, which may throw. Throws TimeoutError that names the ranks that
// have not come within the group's time limit. Ctrl-C interrupts it. Wants no GIL.
void meet(const ProcessGroup& group, const std::string& place,
          const std::function<void()>& look);

// One rank's word, in the store of the model's group, that it has set a hook. Not
// thread-safe.
class HookCheck {
 public:
  // Says so; waits for nobody. `model` is equal on all ranks and tells models apart, as far
  // as that is possible; `hook` is compared.
  HookCheck(c10d::ProcessGroup& group, const std::string& model, std::string hook);
  ~HookCheck();
  HookCheck(const HookCheck&) = delete;
  HookCheck& operator=(const HookCheck&) = delete;

  // Collective over the ranks that have set a hook, at the first bucket after that. Returns
  // when all ranks of the group have. Throws MismatchError, with ranks and hooks, when
  // their hooks differ, and when some are in a backward pass without it: `busy`, if given,
  // tells which are in one with their former hook; those without any are found by averaging
  // `bucket` with them, as they do, into a copy. That is tried when a rank has not spoken
  // within seconds. Where another rank takes longer, waits for it, for the group's time
  // limit. Ctrl-C interrupts it. Wants no GIL.
  void check(c10d::ProcessGroup& group, const at::Tensor& bucket,
             const std::function<std::vector<int>()>& busy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::python
