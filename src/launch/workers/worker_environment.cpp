#include "launch/workers/worker_environment.h"

#include <algorithm>
#include <cstdlib>

namespace brigade::launching {

std::map<std::string, std::string> worker_environment(int local_rank, int workers,
                                                      const Place& place,
                                                      const LaunchOptions& options) {
  const std::string rank = std::to_string(place.first_rank + local_rank);
  const std::string world = std::to_string(place.world);
  std::map<std::string, std::string> variables{
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world},
      {"LOCAL_WORLD_SIZE", std::to_string(workers)},
      {"GROUP_RANK", std::to_string(place.node)},
      {"GROUP_WORLD_SIZE", std::to_string(std::max(options.nodes, place.node + 1))},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", place.master},
      {"MASTER_PORT", std::to_string(place.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", place.run_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(place.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)}};
  const auto unless_set = [&](const char* name, const std::string& value) {
    if (!std::getenv(name)) variables[name] = value;
  };
  unless_set("OMP_NUM_THREADS", std::to_string(threads_per_worker(workers)));
  // As torchrun does: a worker whose peer died is ended. Brigade's own groups see to that
  // themselves (torch_port/nccl_module.cpp).
  unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // Else what a Python worker prints would come when it ends, for its stdout is a pipe.
  unless_set("PYTHONUNBUFFERED", "1");
  for (const auto& [name, value] : options.environment) variables[name] = value;
  return variables;
}

}  // namespace brigade::launching
