// Connects an attempt with the rest of the job while its workers run.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"

namespace brigade::launching {

// The requests of the rest of the job to this host's attempt.
struct Actions {
  std::vector<int> start = {};  // local ranks, of new workers
  std::vector<int> kill = {};   // workers
  // Whether another host has the failure that ends the attempt, or is lost.
  bool ended_elsewhere = false;
  // Whether this host's launcher must stay even without workers.
  bool stay = false;
  // The longest time until the next poll, if fd() does not become readable before.
  std::chrono::milliseconds sleep{1000};
};

// This base class controls a job on one host: the first worker that fails ends the attempt.
// Jobs on several hosts and elastic jobs override it.
//
// Workers are numbered from 0, in the order in which this host started them. Not
// thread-safe: the attempt's loop calls it.
class JobControl {
 public:
  virtual ~JobControl() = default;

  // Elastic jobs: the number of this host's worker 0 in the whole job; the others' follow.
  virtual std::optional<int> first_number() const { return std::nullopt; }
  virtual void started(int /*worker*/, int /*local_rank*/) {}
  // Whether the job goes on without a worker that has ended. `how`: "rank 2 ended by
  // SIGKILL", with kind and rank of the error that it has recorded.
  virtual bool goes_on_without(int /*worker*/, bool ended_well,
                               const base::Cause& /*how*/) {
    return ended_well;
  }
  // Called when a worker has failed and ends the attempt, before the others are ended.
  virtual void failed() {}

  // Becomes readable when poll() has something to do; -1: never.
  virtual int fd() const { return -1; }
  virtual Actions poll() { return {}; }
  // Why an elastic job cannot go on; empty: it can.
  virtual std::string over() const { return {}; }
};

}  // namespace brigade::launching
