// The collectives of a model that no hook runs: the Reducer's own, and those between two
// passes.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "brigade/process_group.h"
#include "engine/failure/failure_store.h"
#include "engine/failure/watcher.h"

namespace brigade::engine {

// A c10d group over the connections of another one. Its broadcasts, all-reduces and
// all-gathers of CPU tensors fail as a hook's buckets do: within the group's time limit and
// a second or two, on all ranks with the first cause, which says who did not take part: as
// PeerLostError, TimeoutError, or another type of ours.
// What it adds to a collective is a future and a note; no memory is copied.
class WatchedGroup {
 public:
  // Nothing where there is nothing to watch: with one rank; over NCCL, whose collectives
  // the host does not wait for; and in an elastic job, which has its own way to end what
  // waits. Collective: it gives out a name.
  static std::unique_ptr<WatchedGroup> make(const ProcessGroup& group);
  // Fails what is under way, and all that comes later.
  ~WatchedGroup();
  WatchedGroup(const WatchedGroup&) = delete;
  WatchedGroup& operator=(const WatchedGroup&) = delete;

  // May outlive this.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return c10d_; }
  // From now on errors speak of the next step; the first one is 0.
  void begin_step();

  struct Ledger;

 private:
  explicit WatchedGroup(const ProcessGroup& group);
  std::optional<Watcher::Watched> oldest();
  base::Cause cause_of(const std::exception_ptr& error);
  void fail_all(const base::Cause& why);

  const ProcessGroup group_;
  const std::shared_ptr<Ledger> ledger_;
  const c10::intrusive_ptr<c10d::ProcessGroup> c10d_;
  FailureStore failures_;
  Watcher watcher_;
};

}  // namespace brigade::engine
