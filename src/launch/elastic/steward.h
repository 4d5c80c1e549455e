// What an attempt asks when its job is elastic: whether it goes on without a worker, whom
// to start, whom to kill.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "base/failure.h"

namespace brigade::launching {

// Workers go by their place among those that this host has started, from 0. Not
// thread-safe: the attempt's loop calls it.
class Steward {
 public:
  virtual ~Steward() = default;
  // The job's number of this host's worker 0; the others' follow.
  virtual int first_number() const = 0;
  virtual void started(int worker, int local_rank) = 0;
  // Whether the job goes on without it. `how`: "rank 2 ended by SIGKILL", with kind and
  // rank of the error that it has recorded.
  virtual bool goes_on_without(int worker, bool ended_well, const base::Cause& how) = 0;

  struct Wishes {
    std::vector<int> start;  // local ranks
    std::vector<int> kill;   // workers
    // All is done: workers that wait for a place are not needed.
    bool finished = false;
  };
  virtual Wishes turn() = 0;
  // Why the job is over; empty: it is not.
  virtual const std::string& over() const = 0;
  virtual bool is_member(int worker) const = 0;
  // Whether this host's launcher must stay when none of its workers is left.
  virtual bool must_stay() const = 0;
  // How long the loop may sleep.
  virtual std::chrono::milliseconds patience() const = 0;
};

}  // namespace brigade::launching
