#include "launch/watch/job_info.h"

#include <nlohmann/json.hpp>

namespace brigade::launching {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobInfo, run_id, host, command, pid, started_ns, nodes,
                                   workers, first_rank, world, elastic, restarts,
                                   max_restarts, replaced)

std::string to_json(const JobInfo& job) {
  return nlohmann::json(job).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<JobInfo> job_from_json(const std::string& text) try {
  return nlohmann::json::parse(text).get<JobInfo>();
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace brigade::launching
