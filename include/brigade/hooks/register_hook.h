// SPDX-License-Identifier: BSD-3-Clause
// A name for a hook of your own, so that it can be chosen where hooks are chosen by text:
// make_hook("mine:k=3"), behind a wrapper ("fp16+mine"), in a program's own options.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// What stood behind the name, "k=3,exact=1", by key.
using HookArguments = std::map<std::string, std::string>;
using HookFactory = std::function<std::shared_ptr<Hook>(const HookArguments& arguments)>;

// From now on make_hook() knows `name` in this process: register it on every rank, at the
// start of main(). The factory is called once for each hook that is made; it throws
// ConfigError for arguments that it does not know. The hook's fingerprint should name them:
// ranks compare it.
//
// The table of the library's own hooks stays as it is: bench, plan and selftest do not list
// yours. Throws ConfigError when the name is taken, by the table too, or is not made of
// letters, digits and '_'. Thread-safe.
BRIGADE_API void register_hook(std::string_view name, HookFactory factory);

}  // namespace brigade
