#include "common/removed.h"

#include <array>
#include <string_view>

namespace brigade::tool {
namespace {

struct Removed {
  std::string_view word;
  const char* instead;
};

constexpr const char* kFollow =
    "follow a training in TensorBoard or in metrics.jsonl, which brigade train --out DIR "
    "and brigade::report::TrainingLog write as it goes";

constexpr std::array kRemoved{
    Removed{.word = "--secret",
            .instead = "launchers do not admit each other by a secret any more; on a "
                       "network that others share, connect the hosts by WireGuard, see "
                       "docs/launching.md"},
    Removed{.word = "plan",
            .instead = "use 'brigade bench', which measures the hooks here and prints at "
                       "which link speed each overtakes all-reduce"},
    Removed{.word = "top", .instead = kFollow},
    Removed{.word = "--label",
            .instead = "it was of csv:FILE, which brigade train no longer reads; take "
                       "digits, idx:FOLDER or text:FILE"},
    Removed{.word = "--metrics-port", .instead = kFollow},
};

}  // namespace

std::string instead_of(const std::string& word) {
  const std::string_view name = std::string_view(word).substr(0, word.find('='));
  for (const Removed& removed : kRemoved)
    if (removed.word == name) return removed.instead;
  return {};
}

}  // namespace brigade::tool
