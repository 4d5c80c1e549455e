#include "engine/comm/groups.h"

#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace brigade::engine {

StationGroups::~StationGroups() {
  std::vector<Station> stations;
  for (Station& station : stations_) {
    if (!station.empty()) stations.push_back(std::move(station));
  }
  if (stations.empty()) return;
  std::thread([stations = std::move(stations)]() mutable { stations.clear(); }).detach();
}

void StationGroups::clear() {
  std::lock_guard lock(mutex_);
  for (Station& station : stations_) station.clear();
}

c10d::ProcessGroup& StationGroups::get(size_t station, const ProcessGroup& group,
                                       int channel, const std::string& name) {
  const std::pair key(group.c10d().get(), channel);
  {
    std::lock_guard lock(mutex_);
    const auto found = stations_[station].find(key);
    if (found != stations_[station].end()) return *found->second.own.c10d();
  }
  const std::string full = name + "/station" + std::to_string(station);
  Duplicate made{group, group.duplicate(channel == 0 ? full : full + "/odd")};
  std::lock_guard lock(mutex_);
  return *stations_[station].emplace(key, std::move(made)).first->second.own.c10d();
}

std::vector<ProcessGroup> StationGroups::all() const {
  std::lock_guard lock(mutex_);
  std::vector<ProcessGroup> groups;
  for (const Station& station : stations_) {
    for (const auto& [key, duplicate] : station) groups.push_back(duplicate.own);
  }
  groups.push_back(own_);
  return groups;
}

HostGroups::Parts& HostGroups::parts_of(const ProcessGroup& group) {
  Parts& found = parts_[group.c10d().get()];
  found.of = group;
  return found;
}

ProcessGroup HostGroups::host_ranks(const ProcessGroup& of, const std::string& name) {
  std::lock_guard lock(mutex_);
  ProcessGroup& host_ranks = parts_of(of).host_ranks;
  if (!host_ranks) host_ranks = of.new_group(of.layout().host_ranks(), name + "/host");
  return host_ranks;
}

ProcessGroup HostGroups::cross_host_ranks(const ProcessGroup& of, const std::string& name) {
  std::lock_guard lock(mutex_);
  ProcessGroup& cross_host_ranks = parts_of(of).cross_host_ranks;
  if (!cross_host_ranks && of.layout().place < of.layout().places())
    cross_host_ranks = of.new_group(of.layout().cross_host_ranks(), name + "/peers");
  return cross_host_ranks;
}

std::vector<ProcessGroup> HostGroups::all() const {
  std::vector<ProcessGroup> groups;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return groups;
  for (const auto& [key, parts] : parts_)
    for (const ProcessGroup& group : {parts.host_ranks, parts.cross_host_ranks})
      if (group) groups.push_back(group);
  return groups;
}

}  // namespace brigade::engine
