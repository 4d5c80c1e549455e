// Keeps the launchers of one job on several hosts in step, through node 0's store.
//
// Vocabulary: a *node* is one host's launcher. It *joins* an attempt, its workers run, and
// it is *done* with the attempt when all of them have ended well; it has *left* when it
// needs the store no more. The node whose worker fails first *claims* the attempt's failure
// at once. When its workers have ended, it publishes a *verdict*: the result that all nodes
// show, and whether the job may be restarted.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/launch.h"

namespace c10d {
class Store;
}

namespace brigade::launching {

enum class NodePhase { joining, done, left };

struct NodeState {
  int node_rank = 0;
  int nodes = 0;
  // Distinguishes two launchers with the same node rank.
  std::string job_id;
  std::string host;
  int workers = 0;
  int attempt = 0;
  NodePhase phase = NodePhase::joining;
  // Set by node 0: the run's id, and the port of the store of this attempt's workers.
  std::string run_id;
  int port = 0;
  // The run's id as the user gave it to this launcher; empty: the launcher made one up.
  std::string given_run_id;
  // Grows as long as the node lives.
  long beat = 0;
};

struct JobResult {
  std::string text;
  int exit_code = 1;
  // Whether the job must not restart, for instance because somebody interrupted it.
  bool final = false;
  std::optional<WorkerFailure> failure;
};

// The last known state of the others.
struct NodeNews {
  // By node rank; none if a node has not been heard of.
  std::vector<std::optional<NodeState>> nodes;
  // The node that claimed the current attempt.
  std::optional<int> claimed_by;
  std::optional<JobResult> verdict;
  // Node 0: a launcher of another job that was refused; empty: there was none.
  std::string refused;
  // Why the others are out of reach; empty: they are not.
  std::string lost;

  // Whether all are in this attempt, in that phase or beyond.
  bool all_in(int attempt, NodePhase phase) const;
  // Names the nodes that are not: "node 1, node 3".
  std::string missing(int attempt, NodePhase phase) const;
  // Names the nodes that did not join this attempt in time, and those lost earlier.
  std::string why_missing(int attempt, std::chrono::milliseconds limit) const;
};

// Opens the store of node 0. Returns null, and sets `why`, if it must be tried again. Runs
// in the link's thread, and may outlive the link.
using StoreOpener = std::function<c10::intrusive_ptr<c10d::Store>(std::string& why)>;

// All calls return at once; a thread of its own talks to the store.
class NodeLink {
 public:
  // `limit`: how long the store, or a node, may be silent before it counts as lost.
  NodeLink(NodeState self, const LaunchOptions& options, StoreOpener opener,
           std::chrono::milliseconds limit);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Becomes readable when there is news; news() resets it.
  int fd() const;
  NodeNews news();
  void join(int attempt, int port);
  void enter(NodePhase phase);
  // Only the first claim of an attempt counts; see NodeNews::claimed_by.
  void claim();
  void publish(const JobResult& verdict);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace brigade::launching
