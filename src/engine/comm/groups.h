// The groups behind a hook's collectives: each station's own, and those that a host's ranks
// form.
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
// order. Thread-safe in so far as each station's groups are asked for by one thread at a
// time.
class StationGroups {
 public:
  // `own`: the engine's group, which its stations use beside their duplicates.
  explicit StationGroups(ProcessGroup own) : own_(std::move(own)) {}
  // The last to let go of the groups may be the callback of a collective, on a thread of
  // one of them, which can't join itself: another thread ends them.
  ~StationGroups();
  StationGroups(const StationGroups&) = delete;
  StationGroups& operator=(const StationGroups&) = delete;

  // The duplicate of `group` for this station; channel 0 and 1 are separate connections.
  // Collective when it is asked for the first time. `name` is equal on all ranks and names
  // whose station it is.
  c10d::ProcessGroup& get(size_t station, const ProcessGroup& group, int channel,
                          const std::string& name);
  // All duplicates that there are, and the engine's group. Any thread may ask.
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

// The groups that a host's ranks form, for hooks that work in two levels.

// Made when they are first asked for, then kept. Thread-safe.
class HostGroups {
 public:
  // The ranks of `of` on this rank's host. Collective among them the first time. `name` is
  // equal on all ranks and says whose group it is.
  ProcessGroup host_ranks(const ProcessGroup& of, const std::string& name);
  // The ranks of `of` that have this rank's place on their hosts; empty where not every
  // host has such a place. Collective among them the first time.
  ProcessGroup cross_host_ranks(const ProcessGroup& of, const std::string& name);
  // All that there are. While one is being made, which may take long, there are none.
  std::vector<ProcessGroup> all() const;

 private:
  // The group they are parts of is kept alive so that its address stays unique.
  struct Parts {
    ProcessGroup of, host_ranks, cross_host_ranks;
  };
  Parts& parts_of(const ProcessGroup& group);

  mutable std::mutex mutex_;
  std::map<const c10d::ProcessGroup*, Parts> parts_;
};

}  // namespace brigade::engine
