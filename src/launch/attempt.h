// One attempt of a job on this host: starts the workers, watches them, ends them all.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "brigade/launch.h"
#include "launch/held_signals.h"
#include "launch/job_control.h"
#include "launch/workers/job_processes.h"
#include "launch/workers/spawn.h"

namespace brigade::launching {

// What the attempt needs to know about the rest of the job.
struct AttemptPlan {
  JobControl& control;
  int attempt = 0;
  int workers = 0;
  // Of this host's first worker.
  int first_rank = 0;
  std::string host = {};
  // This attempt's folder, with a subfolder for each local rank.
  std::string folder = {};
  bool folder_is_kept = false;
  std::chrono::milliseconds grace = {};
  // The environment of the worker with that local rank.
  std::function<std::map<std::string, std::string>(int local_rank)> environment = {};
  // Further descriptors of the launcher, for workers to close.
  std::vector<int> launchers_own = {};
  // Called once the workers run; only from then on may the launcher have threads.
  std::function<void()> started = {};
};

struct AttemptResult {
  // The first worker of this host that failed; none if none did.
  std::optional<WorkerFailure> failure;
  // The signal that ended the job; 0: none.
  int interrupted = 0;
  bool past_wall = false;
  bool ended_elsewhere = false;
  // Workers that the launcher ended, and how: "rank 0 ended by SIGTERM".
  std::vector<std::string> others;
  // Why what a worker wrote to stdout could not all be shown (errno); 0: it was.
  int output_lost = 0;
  // Why an elastic job could not go on.
  std::string over;
  bool good() const {
    return !failure && !interrupted && !past_wall && !ended_elsewhere && !output_lost &&
           over.empty();
  }
};

// Returns when no process of the job is left.
AttemptResult run_attempt(const AttemptPlan& plan, const WorkerBody& body,
                          const LaunchOptions& options, HeldSignals& signals,
                          JobProcesses& processes, Guardian& guardian);

}  // namespace brigade::launching
