// The hook that chooses, with decisions from a test.
#pragma once
#include "brigade/hooks.h"
#include "brigade/process_group.h"
#include "hooks/auto/auto_hook.h"

namespace brigade::testing {

// Takes its decisions from a list, one for each window.
class ScriptedTuner : public Tuner {
 public:
  explicit ScriptedTuner(std::vector<Decision> script) : script_(std::move(script)) {}
  Decision after(size_t hook, const WindowTimes&) override {
    return next_ < script_.size() ? script_[next_++] : Decision{hook, true, ""};
  }
  void resume(size_t) override { next_ = script_.size(); }

 private:
  std::vector<Decision> script_;
  size_t next_ = 0;
};

// One window each is exact, int8, exact; the rest are int4.
inline std::shared_ptr<Hook> scripted_auto(const ProcessGroup& group) {
  // Other ranks' decisions must not count.
  const std::vector<Decision> script =
      group.rank() == 0 ? std::vector<Decision>{{1, false, "trying int8"},
                                                {0, false, "back"},
                                                {2, true, "int4"}}
                        : std::vector<Decision>(3, Decision{2, true, "mine"});
  return make_auto("", {{"int8", make_hook("int8")}, {"int4", make_hook("int4")}},
                   [script](auto) { return std::make_unique<ScriptedTuner>(script); });
}

}  // namespace brigade::testing
