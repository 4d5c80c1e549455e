// "auto", "auto:least=int8", "auto:among=fp16/powersgd(rank=2,start=0)".
#include <algorithm>
#include <array>

#include "base/option_spec.h"
#include "brigade/hooks/registry.h"
#include "hooks/auto/auto_hook.h"
#include "hooks/hook_text.h"

namespace brigade {
namespace {

// What it tries unless it is told, from the most exact on. Others send as many bytes as one
// of these and are coarser. The exact steps at the beginning are PowerSGD's warm-up.
constexpr std::array<std::string_view, 4> kUsual{"fp16", "int8", "int4",
                                                 "powersgd:rank=2,start=0"};
constexpr const char* kUsualLeast = "int8";

std::string_view last_name(std::string_view spec) {
  const std::string_view head = hook_head(spec);
  return head.substr(head.rfind('+') + 1);
}

// Null: not of the table.
const HookEntry* entry_of(std::string_view name) {
  const auto table = hook_table();
  const auto found = std::ranges::find(table, name, &HookEntry::name);
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> no_coarser_than(const std::string& least) {
  const HookEntry* entry = entry_of(least);
  if (!entry) make_hook(least);  // says what is known
  if (!entry || entry->tolerance < 0) {
    throw ConfigError("hook 'auto': least is '" + least + "', whose result is no mean");
  }
  std::vector<std::string> specs;
  for (const std::string_view spec : kUsual) {
    const HookEntry* usual = entry_of(last_name(spec));
    if (usual && usual->tolerance <= entry->tolerance) specs.emplace_back(spec);
  }
  return specs;
}

void check_candidate(const std::string& spec) {
  const auto refuse = [&](const char* why) {
    throw ConfigError("hook 'auto': '" + spec + "' can't be a candidate: " + why);
  };
  const HookEntry* entry = entry_of(last_name(spec));
  if (entry && entry->tolerance < 0) refuse("its result is no mean");
  if (entry && entry->name == "auto") refuse("it chooses itself");
  if (hook_head(spec).find("node+") != std::string_view::npos)
    refuse("not all ranks have what it keeps");
}

std::vector<std::string> specs_in(const std::string& among) {
  std::vector<std::string> specs;
  for (const std::string_view word : split_outside(among, '/')) {
    specs.emplace_back(word);
    check_candidate(specs.back());
  }
  return specs;
}

}  // namespace

std::shared_ptr<Hook> make_auto_of(std::string_view options) {
  constexpr std::array<std::string_view, 2> known{"least", "among"};
  const base::OptionSpec given("auto", options, known);
  const std::string least = given.text("least", ""), among = given.text("among", "");
  if (!least.empty() && !among.empty())
    throw ConfigError("hook 'auto' takes either least or among");
  const auto specs = among.empty() ? no_coarser_than(least.empty() ? kUsualLeast : least)
                                   : specs_in(among);
  std::vector<AutoCandidate> candidates;
  for (const std::string& spec : specs) candidates.push_back({spec, make_hook(spec)});
  return make_auto(std::string(options), std::move(candidates));
}

}  // namespace brigade
