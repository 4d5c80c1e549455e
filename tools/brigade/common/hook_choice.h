// Which hooks a command line names, and what the table says of a hook.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/hooks.h"

namespace brigade::tool {

// Stands for a model without a hook, where hooks are compared with it.
inline constexpr const char* kNoHook = "none";

// The row of the table of that name. Throws ConfigError.
const HookEntry& entry_of(std::string_view name);

// Specs of the registry from "fp16,powersgd:rank=2,int8" (a comma before an option belongs
// to the hook before it), or every row of the table when empty. Hooks that begin with plain
// averaging are taken as they are afterwards: start=0, unless the spec says otherwise.
// Throws ConfigError, as make_hook does, for what the registry does not know.
// `may_be_none`: kNoHook is taken too.
std::vector<std::string> choose_hooks(const std::string& text, bool may_be_none = false);

// The same hook, compressing from the first step on, whatever its `start` was.
std::string from_the_first_step(const std::string& spec);
// How many steps it averages exactly before it compresses (`start`); 0 for a hook without
// such steps. Of rules, and of what `auto` is told to choose among: the most of any.
int64_t steps_before_compression(const std::string& spec);
// A sentence for a run of only `steps` steps, in which this hook, or one that it is made
// of, never compresses. Empty if all of them do.
std::string why_it_never_compresses(const std::string& spec, int64_t steps);

// The row of the table that does the work: "powersgd" of "fp16+powersgd:rank=2,start=0".
std::string base_name(const std::string& spec);
// What one step may be off by, from the table; the sum of a wrapper's and its hook's.
// Negative: the result is not a mean.
double tolerance_of(const std::string& spec);

}  // namespace brigade::tool
