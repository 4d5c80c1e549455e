// A whole job: its attempts, on this host or together with the launchers of others.
#pragma once
#include "brigade/launch.h"
#include "launch/workers/spawn.h"

namespace brigade::launching {

// Returns when all workers of all hosts have ended well; throws as launch() does. REQUIRES:
// the options have been checked.
void run_job(int workers, const WorkerBody& body, const LaunchOptions& options);

}  // namespace brigade::launching
