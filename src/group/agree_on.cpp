#include <map>
#include <sstream>

#include "brigade/error.h"
#include "brigade/process_group.h"

namespace brigade {
namespace {

// Every text's first line that is not the same in all of them.
std::vector<std::string> first_lines_that_differ(const std::vector<std::string>& texts) {
  std::vector<std::istringstream> rests;
  for (const std::string& text : texts) rests.emplace_back(text);
  std::vector<std::string> lines(texts.size());
  const auto all_equal = [](const std::vector<std::string>& all) {
    return std::equal(all.begin() + 1, all.end(), all.begin());
  };
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

void ProcessGroup::agree_on(const std::string& what, const std::string& mine,
                            const std::string& remedy) const {
  const std::vector<std::string> all = gather_texts(what, mine);
  if (std::equal(all.begin() + 1, all.end(), all.begin())) return;
  const std::vector<std::string> lines = first_lines_that_differ(all);
  std::map<std::string, std::string> ranks_of;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    std::string& ranks = ranks_of[lines[rank]];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string text = "the ranks have different " + what + ":";
  for (const auto& [line, ranks] : ranks_of) text += "\n  '" + line + "' on ranks " + ranks;
  throw MismatchError(text + "\n" + remedy);
}

}  // namespace brigade
