// A hook's collectives among some of the ranks only.
#pragma once
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade::engine {

class Engine;

// For its life rank(), size() and the collectives of `comm` are those of `group`, which
// this rank must be in; so any hook can run among fewer ranks:
//
//   GroupScope host(comm, ranks_of_this_host);
//   co_return co_await inner->reduce(bucket, comm);
//
// Different groups of ranks may be at it side by side.
class GroupScope {
 public:
  GroupScope(Comm& comm, ProcessGroup group);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

 private:
  Comm& comm_;
  ProcessGroup before_;
};

// The engine that runs the hook that has this Comm.
const Engine& engine_of(Comm& comm);

}  // namespace brigade::engine
