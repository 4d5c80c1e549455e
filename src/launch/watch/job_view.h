// A running job of this host, as it can be seen from outside.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "group/live/rank_status.h"
#include "launch/watch/job_info.h"

namespace brigade::launching {

// A status folder's name begins so.
inline constexpr const char* kStatusPrefix = "brigade_live_";
// Where status folders may lie, best first.
std::vector<std::string> status_places();
std::string rank_page_of(const std::string& folder, int rank);
// The launcher's own page, with the losses that the worker prints.
std::string printed_page_of(const std::string& folder, int rank);

struct RankView {
  enum class State : std::uint8_t { starting, running, stopped, ended };
  int rank = 0;
  std::string host;      // empty: this one
  std::int64_t pid = 0;  // 0: it has shown nothing yet
  State state = State::starting;
  group::RankStatus status;
  // Medians over the last steps, at most 16; 0: none is over.
  double step_ms = 0, compute_ms = 0, wait_ms = 0;
  double seconds_since_step = 0;
  // It computes for more than 1.25 times the median of all ranks, by 5 % of a step at
  // least: they wait for it.
  bool straggles = false;
};
const char* name_of(RankView::State state);

struct JobView {
  JobInfo job;
  // In order: those of this host, on node 0 those of the others too, as last heard. The
  // hosts of an elastic job tell each other nothing.
  std::vector<RankView> ranks;
  double seconds = 0;      // since the launcher began
  int generation() const;  // of an elastic job; -1: it is none
};

// None: there is no job any more.
std::optional<JobView> read_job(const std::string& folder);
// The status folders of this user's jobs on this host, the oldest job first.
std::vector<std::string> find_jobs();
// What somebody should look at, a sentence each: ranks that others wait for, that stand
// still or have ended, and numbers that are none.
std::vector<std::string> complaints_about(const JobView& view);

}  // namespace brigade::launching
