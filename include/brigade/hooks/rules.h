// SPDX-License-Identifier: BSD-3-Clause
// A hook for each kind of parameter, chosen by name.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

struct Rule {
  // Of names of parameters, as in "encoder.*.bias": '*' stands for any text, also with
  // dots and also empty, '?' for one character.
  std::string pattern = {};
  std::shared_ptr<Hook> hook = {};
};

// The first rule that fits a parameter's name decides. Inside a bucket each hook gets its
// own parameters as a bucket of its own, all side by side; where they do not lie together
// they are copied out and back. One hook may stand in several rules. As text, for
// make_hook: "rules:*.bias=allreduce;embed.*=fp16;*=int8".
//
// Throws ConfigError for no rules, a rule without pattern or hook, and rules behind "*",
// which no parameter reaches; when the hook is set, for a parameter that no rule fits.
// HookStats::parts has what each hook sent.
BRIGADE_API std::shared_ptr<Hook> rules(std::vector<Rule> list);

}  // namespace brigade
