// What an attempt asks when its job is elastic: whether it goes on without a worker, whom
// to start, whom to kill.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brigade/launch.h"
#include "launch/elastic/membership.h"

namespace c10d {
class Store;
}

namespace brigade::launching {

// Not thread-safe: the attempt's loop calls it.
class Steward {
 public:
  // `limit`: how long a worker may take to become ready, if it is more than a minute.
  Steward(const ElasticLaunch& options, int max_restarts, std::chrono::milliseconds limit)
      : options_(options), limit_(limit), restarts_left_(max_restarts) {}

  // The store that the workers use. To be called once, after the first have been started.
  void serve(c10::intrusive_ptr<c10d::Store> store);
  void started(int worker, int local_rank);
  // Whether the job goes on without it. `how`: "rank 2 ended by SIGKILL".
  bool goes_on_without(int worker, bool ended_well, const std::string& how);

  struct Wishes {
    std::vector<int> start;  // local ranks
    std::vector<int> kill;   // workers, by number
    // All is done: workers that wait for a place are not needed.
    bool finished = false;
  };
  Wishes turn();
  // Why the job is over; empty: it is not.
  const std::string& over() const { return over_; }
  bool is_member(int worker) const { return membership_ && membership_->is_member(worker); }
  // How long the loop may sleep.
  std::chrono::milliseconds patience() const;

 private:
  int to_come() const;

  const ElasticLaunch options_;
  const std::chrono::milliseconds limit_;
  int restarts_left_;
  std::unique_ptr<group::LauncherMailbox> mail_;
  std::unique_ptr<Membership> membership_;
  std::map<int, int> local_ranks_;  // of living workers, by number
  std::vector<int> to_start_;       // local ranks
  std::string over_;
};

}  // namespace brigade::launching
