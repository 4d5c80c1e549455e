#include "common/hook_choice.h"

#include <algorithm>

#include "brigade/hooks.h"
#include "common/options.h"
#include "hooks/hook_text.h"

namespace brigade::tool {
namespace {

bool has_option(const HookEntry& entry, std::string_view option) {
  return std::ranges::find(entry.options, option) != entry.options.end();
}

// The tolerance of the coarsest rule; negative if a rule's hook is no mean.
double tolerance_of_rules(const std::string& spec) {
  double most = 0;
  for (const auto& [pattern, hook] : rule_texts(hook_options(spec))) {
    const double one = tolerance_of(std::string(hook));
    if (one < 0) return one;
    most = std::max(most, one);
  }
  return most > 0 ? most : entry_of("rules").tolerance;
}

// The tolerance of the coarsest hook that it may choose.
double tolerance_of_auto(const std::string& spec) {
  double most = entry_of("auto").tolerance;
  for (const std::string_view option : split_outside(hook_options(spec), ',')) {
    const size_t equals = std::min(option.find('='), option.size() - 1);
    if (option.starts_with("among=")) most = entry_of("allreduce").tolerance;
    for (const std::string_view hook : split_outside(option.substr(equals + 1), '/')) {
      const double one = tolerance_of(std::string(hook));
      most = option.starts_with("least=") ? one : std::max(most, one);
    }
  }
  return most;
}

// The texts of the hooks that `auto` is told to choose among.
std::vector<std::string_view> given_candidates(const std::string& spec) {
  constexpr std::string_view key = "among=";
  for (const std::string_view option : split_outside(hook_options(spec), ',')) {
    if (option.starts_with(key)) return split_outside(option.substr(key.size()), '/');
  }
  return {};
}

std::vector<std::string_view> hooks_within(const std::string& spec) {
  if (base_name(spec) == "auto") return given_candidates(spec);
  std::vector<std::string_view> hooks;
  for (const auto& [pattern, hook] : rule_texts(hook_options(spec))) hooks.push_back(hook);
  return hooks;
}

// Looks at the part behind the last '+'.
std::string in_full_swing(const std::string& spec) {
  if (!has_option(entry_of(base_name(spec)), "start")) return spec;
  const std::string_view options = hook_options(spec);
  if (options.find("start=") != std::string_view::npos) return spec;
  const std::string head(hook_head(spec));
  if (options.empty()) return head + ":start=0";
  return head + ":" + std::string(options) + ",start=0";
}

// A hook, and how many steps it takes before it compresses.
struct LateHook {
  std::string spec;
  int64_t steps = 0;
};

// Returns the hook itself, or the latest of those that it is made of.
LateHook latest_to_compress(const std::string& spec) {
  if (entry_of(base_name(spec)).of_hooks) {
    LateHook latest{spec, 0};
    for (const std::string_view hook : hooks_within(spec)) {
      LateHook one = latest_to_compress(std::string(hook));
      if (one.steps > latest.steps) latest = std::move(one);
    }
    return latest;
  }
  if (!has_option(entry_of(base_name(spec)), "start")) return {spec, 0};
  const size_t start = spec.rfind("start=");
  if (start == std::string::npos) return {spec, PowerSGDOptions().start_powerSGD_iter};
  return {spec, std::stoll(spec.substr(start + 6))};
}

// True for the options in "int8:flat=1,small".
bool is_option(std::string_view word) {
  if (std::ranges::find(bare_options(), word, &base::BareOption::key) !=
      bare_options().end())
    return true;
  return word.find('=') != std::string::npos &&
         word.find_first_of(":(") == std::string::npos;
}

// A comma in parentheses, or before an option, belongs to the hook before it.
std::vector<std::string> specs_in(const std::string& text) {
  std::vector<std::string> specs;
  for (const std::string_view word : split_outside(text, ',')) {
    if (word.empty()) parse_list(text, "--hooks");  // throws
    if (is_option(word) && !specs.empty()) {
      specs.back() += "," + std::string(word);
    } else {
      specs.emplace_back(word);
    }
  }
  return specs;
}

}  // namespace

const HookEntry& entry_of(std::string_view name) {
  for (const HookEntry& entry : hook_table()) {
    if (entry.name == name) return entry;
  }
  throw ConfigError("no hook named '" + std::string(name) + "'");
}

std::vector<std::string> choose_hooks(const std::string& text, bool may_be_none) {
  std::vector<std::string> specs;
  if (text.empty()) {
    for (const HookEntry& entry : hook_table()) {
      specs.push_back(std::string(entry.name) +
                      (has_option(entry, "rank") ? ":rank=2" : ""));
    }
  } else {
    specs = specs_in(text);
  }
  for (std::string& spec : specs) {
    if (may_be_none && spec == kNoHook) continue;
    make_hook(spec);
    spec = in_full_swing(spec);
  }
  return specs;
}

std::string from_the_first_step(const std::string& spec) {
  const size_t start = spec.rfind("start=");
  if (start == std::string::npos) return in_full_swing(spec);
  const size_t end = std::min(spec.find_first_of(",);", start), spec.size());
  return spec.substr(0, start) + "start=0" + spec.substr(end);
}

int64_t steps_before_compression(const std::string& spec) {
  return latest_to_compress(spec).steps;
}

std::string why_it_never_compresses(const std::string& spec, int64_t steps) {
  const LateHook late = latest_to_compress(spec);
  if (late.steps < steps || late.steps == 0) return "";
  return (late.spec == spec ? "" : spec + ": ") + late.spec +
         " averages exactly for its first " + std::to_string(late.steps) +
         " steps, and this run has " + std::to_string(steps) +
         ": it never compresses (start=" + std::to_string(steps / 10) +
         " would, after a tenth)";
}

std::string base_name(const std::string& spec) {
  const std::string_view head = hook_head(spec);
  return std::string(head.substr(head.rfind('+') + 1));
}

double tolerance_of(const std::string& spec) {
  if (spec == kNoHook) return tolerance_of("allreduce");
  double sum = 0;
  for (const std::string_view part : split_outside(hook_head(spec), '+')) {
    if (part == "node" || part == "small") continue;  // exact
    const double one = part == "rules"  ? tolerance_of_rules(spec)
                       : part == "auto" ? tolerance_of_auto(spec)
                                        : entry_of(part).tolerance;
    if (one < 0) return one;
    sum += one;
  }
  return sum;
}

}  // namespace brigade::tool
