// The variables that a worker of `brigade run` finds: torchrun's, and a few more.
#pragma once
#include <map>
#include <string>

#include "brigade/launch.h"

namespace brigade::launching {

// Where a host's workers stand in the job.
struct Place {
  int attempt = 0;
  int first_rank = 0;
  int world = 0;
  int node = 0;
  // Of the store.
  std::string master;
  int port = 0;
  std::string run_id;
};

// `workers`: of this host.
std::map<std::string, std::string> worker_environment(int local_rank, int workers,
                                                      const Place& place,
                                                      const LaunchOptions& options);

}  // namespace brigade::launching
