#include <algorithm>
#include <cctype>
#include <mutex>

#include "brigade/error.h"
#include "brigade/hooks.h"
#include "hooks/factories.h"

namespace brigade {
namespace {

// The only state of the library that a program changes for the whole process.
struct Registered {
  std::mutex mutex;
  std::map<std::string, HookFactory, std::less<>> factories;
};

Registered& registered() {
  static Registered all;
  return all;
}

[[noreturn]] void refuse_name(std::string_view name, const char* why) {
  throw ConfigError("register_hook: the name '" + std::string(name) + "' " + why);
}

}  // namespace

void register_hook(std::string_view name, HookFactory factory) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  if (name.empty() || !std::ranges::all_of(name, allowed))
    refuse_name(name, "must be of letters, digits and '_'");
  if (!factory) refuse_name(name, "comes without a factory");
  for (const HookEntry& entry : hook_table()) {
    if (entry.name == name) refuse_name(name, "is that of one of the library's own hooks");
  }
  Registered& all = registered();
  const std::scoped_lock lock(all.mutex);
  if (!all.factories.emplace(name, std::move(factory)).second)
    refuse_name(name, "is registered already");
}

HookFactory registered_factory(std::string_view name) {
  Registered& all = registered();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.factories.find(name);
  return found == all.factories.end() ? HookFactory() : found->second;
}

std::vector<std::string> registered_names() {
  Registered& all = registered();
  const std::scoped_lock lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : all.factories) names.push_back(name);
  return names;
}

HookArguments parse_arguments(std::string_view hook, std::string_view text) {
  HookArguments arguments;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0 ||
        !arguments.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      throw ConfigError("hook '" + std::string(hook) + "': option '" + std::string(word) +
                        "': expected KEY=VALUE, each key once");
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return arguments;
}

}  // namespace brigade
