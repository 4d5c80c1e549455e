#include "launch/watch/status_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "group/live/rank_page.h"
#include "launch/watch/job_view.h"

namespace brigade::launching {

StatusFolder::StatusFolder(JobInfo job) : job_(std::move(job)) {
  for (const std::string& place : status_places()) {
    path_ = place + "/" + kStatusPrefix + "XXXXXX";
    if (mkdtemp(path_.data())) return;
  }
  path_.clear();
}

StatusFolder::~StatusFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

void StatusFolder::begin_attempt(int attempt, int first_rank, int world,
                                 const std::string& run_id) {
  job_.restarts = attempt;
  job_.first_rank = first_rank;
  job_.world = world;
  job_.run_id = run_id;
  write_job();
}

std::string StatusFolder::page_for(int rank, bool replaces) {
  if (path_.empty()) return "";
  const std::string page = rank_page_of(path_, rank);
  const std::string fresh = page + ".new";
  unlink(fresh.c_str());
  // The one who died, or is being ended, keeps its own.
  if (!group::make_rank_page(fresh) || std::rename(fresh.c_str(), page.c_str()) != 0)
    return "";
  job_.replaced += replaces;
  if (replaces) write_job();
  return page;
}

void StatusFolder::write_job() const {
  if (path_.empty()) return;
  const std::string fresh = path_ + "/job.json.new";
  std::ofstream(fresh) << to_json(job_);
  std::rename(fresh.c_str(), (path_ + "/job.json").c_str());
}

}  // namespace brigade::launching
