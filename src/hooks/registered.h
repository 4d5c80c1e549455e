// Hooks that the program has named itself.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "brigade/hooks.h"

namespace brigade {

// Empty function: no such name.
HookFactory registered_factory(std::string_view name);
std::vector<std::string> registered_names();

// "k=3,exact=1". Throws ConfigError that names the hook.
HookArguments parse_arguments(std::string_view hook, std::string_view text);

}  // namespace brigade
