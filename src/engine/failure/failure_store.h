// The store in which the ranks of an engine exchange the cause of a failure.
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

// The end of errors about a missing rank.
constexpr char kUnevenAdvice[] =
    " If it had fewer batches, run the training loop of every rank in join()";

// Thread-safe. Uses the group's own connections to the store (TimedStore), because a new
// one would block if the store's host is gone.
class FailureStore {
 public:
  // `name` is equal on all ranks and different for each engine of the group.
  FailureStore(ProcessGroup group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  // Returns the cause of the first rank to fail, which is `mine` on that rank, so that all
  // ranks show it and not its echoes. Without a store: `mine`.
  base::Cause first_cause(const base::Cause& mine);
  // The first cause in the store, if there is one.
  std::optional<base::Cause> find();
  // Shows the others that this rank lives and waits, while a bucket takes long. Cheap.
  void beat();
  // The other ranks that beat while this rank listens, for less than a second. Without a
  // store: none.
  std::vector<int> beating_ranks();
  // Adds the ranks that do not beat to the text of a time limit's error; if it is one rank,
  // that becomes the cause's rank. Listens for less than a second. Without a store, adds
  // nothing.
  void blame_silent_ranks(base::Cause& cause);
  // A name that is unique among the engines of all groups. The first rank to call this
  // draws it for all.
  const std::string& identity();

 private:
  c10d::Store& store() const;
  std::string key() const { return name_ + "/failure"; }
  std::string beat_key(int rank) const { return name_ + "/beat/" + std::to_string(rank); }
  std::vector<std::string> beats();
  std::vector<bool> listen();  // by rank: whether it has beaten

  const ProcessGroup group_;
  const std::string name_;
  std::once_flag identity_made_;
  std::string identity_;
  std::atomic<int64_t> beats_{0};
};

// Makes a collective's error clearer for people.

// Adds the missing ranks to the text, if they are known: the rank at the end of a broken
// connection or, at a time limit, the ranks that do not beat. Does not change the kind; may
// listen for less than a second.
void explain(base::Cause& cause, FailureStore& failures);

}  // namespace brigade::engine
