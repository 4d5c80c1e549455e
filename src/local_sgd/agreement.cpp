#include "local_sgd/agreement.h"

#include <map>

#include "brigade/error.h"

namespace brigade {

void agree_on(const ProcessGroup& group, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = group.gather_texts(what, mine);
  std::map<std::string, std::string> ranks_of;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string& ranks = ranks_of[all[rank]];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (ranks_of.size() == 1) return;
  std::string text = "the ranks have different " + what + ":";
  for (const auto& [print, ranks] : ranks_of)
    text += "\n  '" + print + "' on ranks " + ranks;
  throw MismatchError(text + "\ngive every rank the same options");
}

}  // namespace brigade
