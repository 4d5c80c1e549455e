// What an attempt tells and asks the rest of the job while its workers run.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"

namespace brigade::launching {

// What the rest of the job wants of this host's attempt.
struct Actions {
  std::vector<int> start = {};  // local ranks, of new workers
  std::vector<int> kill = {};   // workers
  // Another host has the failure that ends the attempt, or is lost.
  bool ended_elsewhere = false;
  // This host's launcher must stay even when none of its workers is left.
  bool stay = false;
  // When to ask again at the latest, if fd() says nothing before.
  std::chrono::milliseconds sleep{1000};
};

// As it is here, that of a job on one host: the first worker that fails ends the attempt,
// and there is nobody to tell. Several hosts' launchers and elastic jobs have their own.
//
// Workers go by their place among those that this host has started, from 0. Not
// thread-safe: the attempt's loop calls it.
class JobControl {
 public:
  virtual ~JobControl() = default;

  // Of an elastic job: the number that its worker 0 here has in the whole job; the others'
  // follow.
  virtual std::optional<int> first_number() const { return std::nullopt; }
  virtual void started(int /*worker*/, int /*local_rank*/) {}
  // Whether the job goes on without a worker that has ended. `how`: "rank 2 ended by
  // SIGKILL", with kind and rank of the error that it has recorded.
  virtual bool goes_on_without(int /*worker*/, bool ended_well,
                               const base::Cause& /*how*/) {
    return ended_well;
  }
  // A worker has failed and ends the attempt; called before the others are ended.
  virtual void failed() {}

  // Readable when there is something for poll(); -1: never.
  virtual int fd() const { return -1; }
  virtual Actions poll() { return {}; }
  // Why an elastic job cannot go on; empty: it can.
  virtual std::string over() const { return {}; }
};

}  // namespace brigade::launching
