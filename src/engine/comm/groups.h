// The groups of a hook's collectives: each station's own, and groups of hosts' ranks.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "brigade/process_group.h"
#include "engine/pipeline.h"

namespace brigade::engine {

// Each station has its own duplicate of a group, so that each sees its collectives in one
// order. Thread-safe, if one thread at a time gets each station's groups.
class StationGroups {
 public:
  // `own`: the engine's group, which stations use beside their duplicates.
  explicit StationGroups(ProcessGroup own) : own_(std::move(own)) {}
  // Another thread ends the groups: the last owner may be a collective's callback on a
  // thread of one of them, which can't join itself.
  ~StationGroups();
  StationGroups(const StationGroups&) = delete;
  StationGroups& operator=(const StationGroups&) = delete;

  // The duplicate of `group` for this station; channel 0 and 1 are separate connections.
  // The first call is collective. `name` is equal on all ranks and names the station's
  // owner.
  c10d::ProcessGroup& get(size_t station, const ProcessGroup& group, int channel,
                          const std::string& name);
  // All present duplicates, and the engine's group. Any thread may call it.
  std::vector<ProcessGroup> all() const;
  // Ends the duplicates here. REQUIRES: not called by a thread of one of the groups.
  void clear();

 private:
  // Keyed by the original group and the channel. The original is kept alive so that its
  // address stays unique.
  struct Duplicate {
    ProcessGroup of, own;
  };
  using Station = std::map<std::pair<const c10d::ProcessGroup*, int>, Duplicate>;
  const ProcessGroup own_;
  mutable std::mutex mutex_;  // for the maps; never held while a group is made
  Station stations_[kStations];
};

// Groups of hosts' ranks, for hooks that work in two levels.

// Makes groups at the first call and keeps them. Thread-safe.
class HostGroups {
 public:
  // The ranks of `of` on this rank's host. The first call is collective among them. `name`
  // is equal on all ranks and names the owner.
  ProcessGroup host_ranks(const ProcessGroup& of, const std::string& name);
  // The ranks of `of` with this rank's place on their hosts; empty if not every host has
  // that place. The first call is collective among them.
  ProcessGroup cross_host_ranks(const ProcessGroup& of, const std::string& name);
  // All present groups; none while one is being made, which may take long.
  std::vector<ProcessGroup> all() const;

 private:
  // The original group is kept alive so that its address stays unique.
  struct Parts {
    ProcessGroup of, host_ranks, cross_host_ranks;
  };
  Parts& parts_of(const ProcessGroup& group);

  mutable std::mutex mutex_;
  std::map<const c10d::ProcessGroup*, Parts> parts_;
};

}  // namespace brigade::engine
