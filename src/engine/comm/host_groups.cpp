#include "engine/comm/host_groups.h"

namespace brigade::engine {

HostGroups::Parts& HostGroups::parts_of(const ProcessGroup& group) {
  Parts& found = parts_[group.c10d().get()];
  found.of = group;
  return found;
}

ProcessGroup HostGroups::mates(const ProcessGroup& of, const std::string& name) {
  std::lock_guard lock(mutex_);
  ProcessGroup& mates = parts_of(of).mates;
  if (!mates) mates = of.new_group(of.layout().mates(), name + "/host");
  return mates;
}

ProcessGroup HostGroups::peers(const ProcessGroup& of, const std::string& name) {
  std::lock_guard lock(mutex_);
  ProcessGroup& peers = parts_of(of).peers;
  if (!peers && of.layout().place < of.layout().places())
    peers = of.new_group(of.layout().peers(), name + "/peers");
  return peers;
}

std::vector<ProcessGroup> HostGroups::all() const {
  std::vector<ProcessGroup> groups;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return groups;
  for (const auto& [key, parts] : parts_)
    for (const ProcessGroup& group : {parts.mates, parts.peers})
      if (group) groups.push_back(group);
  return groups;
}

}  // namespace brigade::engine
