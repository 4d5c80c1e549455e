// What a launcher says about its job to those who watch it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace brigade::launching {

struct JobInfo {
  std::string run_id;
  std::string host;
  std::string command;          // the launcher's own words
  std::int64_t pid = 0;         // of the launcher
  std::int64_t started_ns = 0;  // as group::monotonic_ns()
  int nodes = 1;
  int workers = 0;     // on this host,
  int first_rank = 0;  // of which this is the first
  int world = 0;       // of all hosts
  bool elastic = false;
  int restarts = 0;  // of all workers, so far
  int max_restarts = 0;
  int replaced = 0;  // workers of an elastic job, so far
};

std::string to_json(const JobInfo& job);
// None: it is no such text. In a job's own texts spaces stand for control characters: a
// command may have several lines.
std::optional<JobInfo> job_from_json(const std::string& text);

}  // namespace brigade::launching
