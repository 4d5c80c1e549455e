// Where the ranks of an engine tell each other why they failed.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"
#include "brigade/process_group.h"

namespace brigade::engine {

// For the end of an error about a rank that is not there.
constexpr char kUnevenAdvice[] =
    " If it had fewer batches, run the training loop of every rank in join()";

// Thread-safe. Uses the group's own connections to the store, which do not hold each other
// up (TimedStore). A new one would be waited for, where the store's host is gone.
class FailureStore {
 public:
  // `name` is equal on all ranks and different for each engine of the group.
  FailureStore(ProcessGroup group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  // The cause that the first rank to fail has left there, which is `mine` on that rank:
  // everyone shows that one, not the echo it caused. Without a store: `mine`.
  base::Cause first_cause(const base::Cause& mine);
  // What first_cause() has left there, if anything.
  std::optional<base::Cause> find();
  // Tells the others that this rank lives and waits. Cheap; for a bucket that takes long.
  void beat();
  // The other ranks whose beat changes while this rank listens, for less than a second.
  // Without a store: none.
  std::vector<int> beating_ranks();
  // Adds the ranks whose beat does not change for a while to the text of a time limit's
  // error; if it is one, it is to blame. Takes that while, less than a second. Without a
  // store: nothing is added.
  void blame_silent_ranks(base::Cause& cause);
  // A name that no engine of another group has. The first rank to ask draws it for all.
  const std::string& identity();

 private:
  c10d::Store& store() const;
  std::string key() const { return name_ + "/failure"; }
  std::string beat_key(int rank) const { return name_ + "/beat/" + std::to_string(rank); }
  std::vector<std::string> beats();
  std::vector<bool> listen();  // by rank: whether its beat has changed

  const ProcessGroup group_;
  const std::string name_;
  std::once_flag identity_made_;
  std::string identity_;
  std::atomic<int64_t> beats_{0};
};

// What a collective's error says to people.

// Says in the text who did not take part, where that can be told: the rank that a broken
// connection leads to, or, at a time limit, those that nothing is heard of. Does not decide
// what happened; may listen to the others for less than a second.
void explain(base::Cause& cause, FailureStore& failures);

}  // namespace brigade::engine
