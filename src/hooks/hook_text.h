// The parts of a hook's text, such as "fp16+powersgd:rank=2" or "rules:*.bias=fp16;*=int8".
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/option_spec.h"

namespace brigade {

// The text before the options, wrappers included: "fp16+powersgd".
std::string_view hook_head(std::string_view text);
// The options: the text after a ':', or in parentheses that end the text, as in
// "powersgd(rank=2)". Throws ConfigError for other parentheses.
std::string_view hook_options(std::string_view text);

// The options of all hooks that may stand without a value, as in "int8:small".
std::span<const base::BareOption> bare_options();

// Splits at each `separator` that is not in parentheses. An empty text has no words.
std::vector<std::string_view> split_outside(std::string_view text, char separator);

// A pattern and a hook's text.
using RuleText = std::pair<std::string_view, std::string_view>;
// Parses "PATTERN=HOOK;PATTERN=HOOK". Throws ConfigError.
std::vector<RuleText> rule_texts(std::string_view options);

// Whether `name` matches `pattern`, where '*' is any text and '?' is any one character.
bool fits(std::string_view pattern, std::string_view name);

}  // namespace brigade
