// The hook that chooses, with decisions that a test has made.
#pragma once
#include "brigade/hooks.h"
#include "brigade/process_group.h"
#include "hooks/auto/auto_hook.h"

namespace brigade::testing {

// Decides as it was told, one decision a window.
class ScriptedJudge : public Judge {
 public:
  explicit ScriptedJudge(std::vector<Verdict> script) : script_(std::move(script)) {}
  Verdict after(size_t hook, const WindowTimes&) override {
    return next_ < script_.size() ? script_[next_++] : Verdict{hook, true, ""};
  }
  void resume(size_t) override { next_ = script_.size(); }

 private:
  std::vector<Verdict> script_;
  size_t next_ = 0;
};

// A window each: exact, int8, exact; then int4 for good.
inline std::shared_ptr<Hook> scripted_auto(const ProcessGroup& group) {
  // What other ranks decide must not count.
  const std::vector<Verdict> script =
      group.rank() == 0 ? std::vector<Verdict>{{1, false, "trying int8"},
                                               {0, false, "back"},
                                               {2, true, "int4"}}
                        : std::vector<Verdict>(3, Verdict{2, true, "mine"});
  return make_auto("", {{"int8", make_hook("int8")}, {"int4", make_hook("int4")}},
                   [script](auto) { return std::make_unique<ScriptedJudge>(script); });
}

}  // namespace brigade::testing
