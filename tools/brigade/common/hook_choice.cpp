#include "common/hook_choice.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "brigade/hooks/power_sgd.h"
#include "brigade/hooks/registry.h"
#include "common/options/quantities.h"

namespace brigade::tool {
namespace {

const HookEntry& entry_of(std::string_view name) {
  for (const HookEntry& entry : hook_table()) {
    if (entry.name == name) return entry;
  }
  throw ConfigError("no hook named '" + std::string(name) + "'");
}

bool has_option(const HookEntry& entry, std::string_view option) {
  return std::ranges::find(entry.options, option) != entry.options.end();
}

// Of the part behind the last '+'.
std::string in_full_swing(const std::string& spec) {
  if (!has_option(entry_of(base_name(spec)), "start")) return spec;
  const size_t colon = spec.rfind(':');
  if (colon == std::string::npos || colon < spec.rfind('+') + 1) return spec + ":start=0";
  return spec.find("start=", colon) != std::string::npos ? spec : spec + ",start=0";
}

std::vector<std::string> specs_in(const std::string& text) {
  std::vector<std::string> specs;
  for (const std::string& word : parse_list(text, "--hooks")) {
    const bool option = word.find('=') != std::string::npos &&
                        word.find(':') == std::string::npos && !specs.empty();
    if (option) {
      specs.back() += "," + word;
    } else {
      specs.push_back(word);
    }
  }
  return specs;
}

}  // namespace

void add_hooks_option(CLI::App& command, std::string& hooks) {
  command.add_option("--hooks", hooks,
                     "names by comma, with options; all hooks when left out");
}

std::vector<std::string> choose_hooks(const std::string& text) {
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
    make_hook(spec);
    spec = in_full_swing(spec);
  }
  return specs;
}

std::string from_the_first_step(const std::string& spec) {
  const size_t start = spec.rfind("start=");
  if (start == std::string::npos) return in_full_swing(spec);
  const size_t end = std::min(spec.find(',', start), spec.size());
  return spec.substr(0, start) + "start=0" + spec.substr(end);
}

int64_t steps_before_compression(const std::string& spec) {
  if (!has_option(entry_of(base_name(spec)), "start")) return 0;
  const size_t start = spec.rfind("start=");
  if (start == std::string::npos) return PowerSGDOptions().start_powerSGD_iter;
  return std::stoll(spec.substr(start + 6));
}

std::string base_name(const std::string& spec) {
  const size_t plus = spec.rfind('+');
  const std::string last = plus == std::string::npos ? spec : spec.substr(plus + 1);
  return last.substr(0, last.find(':'));
}

double tolerance_of(const std::string& spec) {
  double sum = 0;
  for (size_t begin = 0; begin <= spec.size();) {
    const size_t end = std::min(spec.find('+', begin), spec.size());
    const std::string part = spec.substr(begin, end - begin);
    begin = end + 1;
    if (part == "node") continue;  // exact
    const double one = entry_of(part.substr(0, part.find(':'))).tolerance;
    if (one < 0) return one;
    sum += one;
  }
  return sum;
}

}  // namespace brigade::tool
