#include "launch/watch/job_info.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace brigade::launching {
namespace {

// Far more than any job has.
constexpr int kMostRanks = 1'000'000;

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobInfo, run_id, host, command, pid, started_ns, nodes,
                                   workers, first_rank, world, elastic, restarts,
                                   max_restarts, replaced)

std::string to_json(const JobInfo& job) {
  return nlohmann::json(job).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<JobInfo> job_from_json(const std::string& text) try {
  JobInfo job = nlohmann::json::parse(text).get<JobInfo>();
  const auto is_count = [](int value) { return value >= 0 && value <= kMostRanks; };
  if (job.pid <= 0 || !is_count(job.workers) || !is_count(job.first_rank) ||
      !is_count(job.nodes))
    return std::nullopt;
  for (std::string* part : {&job.run_id, &job.host, &job.command}) {
    std::ranges::replace_if(
        *part, [](unsigned char c) { return std::iscntrl(c); }, ' ');
  }
  return job;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace brigade::launching
