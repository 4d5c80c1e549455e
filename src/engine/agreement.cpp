#include "engine/agreement.h"

#include <map>

#include "brigade/error.h"

namespace brigade::engine {

void agree_on_hook(const ProcessGroup& group, const std::string& fingerprint) {
  const std::vector<std::string> all = group.gather_texts("hook", fingerprint);
  std::map<std::string, std::string> ranks_of;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string& ranks = ranks_of[all[rank]];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (ranks_of.size() == 1) return;
  std::string text = "the ranks have different hooks:";
  for (const auto& [print, ranks] : ranks_of)
    text += "\n  '" + print + "' on ranks " + ranks;
  throw MismatchError(text + "\nset the same hook, with the same options, on every rank");
}

}  // namespace brigade::engine
