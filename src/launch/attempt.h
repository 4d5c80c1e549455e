// One attempt of a job on this host: it starts the workers, watches them and ends them all.
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

// The rest of the job, as far as the attempt needs it.
struct AttemptPlan {
  JobControl& control;
  int attempt = 0;
  int workers = 0;
  // The rank of this host's first worker.
  int first_rank = 0;
  std::string host = {};
  // This attempt's folder, with a subfolder for each local rank.
  std::string folder = {};
  bool folder_is_kept = false;
  std::chrono::milliseconds grace = {};
  // Returns the environment of the worker with that local rank.
  std::function<std::map<std::string, std::string>(int local_rank)> environment = {};
  // Further descriptors of the launcher that workers must close.
  std::vector<int> launchers_own = {};
  // Called once the workers run; the launcher may have threads only from then on.
  std::function<void()> started = {};
};

struct AttemptResult {
  // The first worker of this host that failed, if any.
  std::optional<WorkerFailure> failure;
  // The signal that ended the job; 0: none.
  int interrupted = 0;
  bool past_wall = false;
  bool ended_elsewhere = false;
  // How workers ended that the launcher ended, such as "rank 0 ended by SIGTERM".
  std::vector<std::string> others;
  // Why a worker's stdout could not all be shown (errno); 0: it was.
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
