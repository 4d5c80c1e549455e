#include "group/host_layout.h"

#include <algorithm>

namespace brigade {
namespace {

bool fewer(const std::vector<int>& one, const std::vector<int>& other) {
  return one.size() < other.size();
}

}  // namespace

int HostLayout::places() const {
  return static_cast<int>(std::ranges::min_element(ranks, fewer)->size());
}

std::vector<int> HostLayout::cross_host_ranks() const {
  std::vector<int> list;
  if (place >= places()) return list;
  for (const auto& there : ranks) list.push_back(there[static_cast<size_t>(place)]);
  return list;
}

std::string HostLayout::text() const {
  const size_t most = std::ranges::max_element(ranks, fewer)->size();
  const size_t least = static_cast<size_t>(places());
  std::string text = std::to_string(hosts()) + (hosts() == 1 ? " host x " : " hosts x ");
  text += std::to_string(least);
  if (least < most) text += " of " + std::to_string(least) + " to " + std::to_string(most);
  return text + (most == 1 ? " rank" : " ranks");
}

namespace group {

HostLayout make_layout(const std::vector<std::string>& hosts, int rank) {
  HostLayout layout;
  layout.host_of.clear();
  layout.ranks.clear();
  std::vector<std::string> seen;
  for (const std::string& host : hosts) {
    const auto found = std::ranges::find(seen, host);
    const auto number = found - seen.begin();
    if (found == seen.end()) {
      seen.push_back(host);
      layout.ranks.emplace_back();
    }
    auto& there = layout.ranks[static_cast<size_t>(number)];
    if (static_cast<int>(layout.host_of.size()) == rank) {
      layout.host = static_cast<int>(number);
      layout.place = static_cast<int>(there.size());
    }
    there.push_back(static_cast<int>(layout.host_of.size()));
    layout.host_of.push_back(static_cast<int>(number));
  }
  return layout;
}

}  // namespace group
}  // namespace brigade
