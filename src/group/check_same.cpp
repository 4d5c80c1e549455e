#include "group/check_same.h"

#include <map>
#include <sstream>

#include "base/hash.h"
#include "brigade/error.h"
#include "brigade/process_group.h"

namespace brigade {
namespace {

bool all_equal(const std::vector<std::string>& all) {
  return std::equal(all.begin() + 1, all.end(), all.begin());
}

// Each text's line at the first position where the texts differ.
std::vector<std::string> first_lines_that_differ(const std::vector<std::string>& texts) {
  std::vector<std::istringstream> rests;
  for (const std::string& text : texts) rests.emplace_back(text);
  std::vector<std::string> lines(texts.size());
  bool more = true;
  while (more && all_equal(lines)) {
    more = false;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (std::getline(rests[rank], lines[rank])) {
        more = true;
      } else {
        lines[rank].clear();
      }
    }
  }
  return lines;
}

}  // namespace

std::string group::describe_difference(const std::string& what,
                                       const std::vector<std::string>& by_rank,
                                       const std::string& remedy) {
  std::map<std::string, std::string> ranks_of;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    std::string& ranks = ranks_of[by_rank[rank]];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string text = "the ranks have different " + what + ":";
  for (const auto& [shown, ranks] : ranks_of) text += "\n  " + shown + " on ranks " + ranks;
  return text + "\n" + remedy;
}

void ProcessGroup::check_same(const std::string& what, const std::string& mine,
                              const std::string& remedy) const {
  if (all_equal(gather_texts(what, std::to_string(base::hash64(mine))))) return;
  std::vector<std::string> lines =
      first_lines_that_differ(gather_texts(what + " in full", mine));
  for (std::string& line : lines) line = "'" + line + "'";
  throw MismatchError(group::describe_difference(what, lines, remedy));
}

}  // namespace brigade
