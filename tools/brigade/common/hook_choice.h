// Reads the hooks that a command line names, and what the table says of them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/hooks.h"

namespace brigade::tool {

// Stands for a model without a hook, in comparisons.
inline constexpr const char* kNoHook = "none";

// The row of the table with that name. Throws ConfigError.
const HookEntry& entry_of(std::string_view name);

// Splits "fp16,powersgd:rank=2,int8" into specs (a comma before an option belongs to the
// hook before it); returns every row of the table when empty. A hook that begins with plain
// averaging gets start=0, unless the spec says otherwise. Throws ConfigError, as make_hook
// does, for what the registry does not know. `may_be_none`: takes kNoHook too.
std::vector<std::string> choose_hooks(const std::string& text, bool may_be_none = false);

// The same hook with start=0: it compresses from the first step on.
std::string from_the_first_step(const std::string& spec);
// How many steps it averages exactly before it compresses (`start`); 0 for a hook without
// such steps. For rules, and for the candidates of `auto`, the largest of their numbers.
int64_t steps_before_compression(const std::string& spec);
// If this hook, or one that it is made of, never compresses in a run of only `steps` steps,
// a sentence that says so. Empty if all of them do.
std::string why_it_never_compresses(const std::string& spec, int64_t steps);

// The row that does the work: "powersgd" in "fp16+powersgd:rank=2,start=0".
std::string base_name(const std::string& spec);
// The error that the table allows in one step; for a wrapper, its own plus its hook's.
// Negative: the result is not a mean.
double tolerance_of(const std::string& spec);

}  // namespace brigade::tool
