// The groups that a host's ranks form, for hooks that work in two levels.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::engine {

// Made when they are first asked for, then kept. Thread-safe.
class HostGroups {
 public:
  // The ranks of `of` on this rank's host. Collective among them the first time. `name` is
  // equal on all ranks and says whose group it is.
  ProcessGroup mates(const ProcessGroup& of, const std::string& name);
  // The ranks of `of` that have this rank's place on their hosts; empty where not every
  // host has such a place. Collective among them the first time.
  ProcessGroup peers(const ProcessGroup& of, const std::string& name);
  // All that there are. While one is being made, which may take long, there are none.
  std::vector<ProcessGroup> all() const;

 private:
  // The group they are parts of is kept alive so that its address stays unique.
  struct Parts {
    ProcessGroup of, mates, peers;
  };
  Parts& parts_of(const ProcessGroup& group);

  mutable std::mutex mutex_;
  std::map<const c10d::ProcessGroup*, Parts> parts_;
};

}  // namespace brigade::engine
