#include "engine/station_groups.h"

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
  for (Station& station : stations_) station.clear();
}

c10d::ProcessGroup& StationGroups::get(size_t station, const ProcessGroup& group,
                                       int channel, const std::string& name) {
  Duplicate& found = stations_[station][{group.c10d().get(), channel}];
  if (!found.own) {
    const std::string full = name + "/station" + std::to_string(station);
    found = {group, group.duplicate(channel == 0 ? full : full + "/odd")};
  }
  return *found.own.c10d();
}

}  // namespace brigade::engine
