#include "launch/watch/status_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "brigade/error.h"
#include "launch/watch/job_view.h"
#include "launch/watch/node_pages.h"

namespace brigade::launching {

StatusFolder::StatusFolder(JobInfo job) : job_(std::move(job)) {
  for (const std::string& place : status_places()) {
    path_ = place + "/" + kStatusPrefix + "XXXXXX";
    if (mkdtemp(path_.data())) return;
  }
  path_.clear();
}

// By names, not by looking: a launcher that has no descriptors left must not leave it
// behind.
StatusFolder::~StatusFolder() {
  if (path_.empty()) return;
  for (int i = 0; i < job_.workers; ++i) {
    const std::string page = rank_page_of(path_, job_.first_rank + i);
    unlink(page.c_str());
    unlink((page + ".new").c_str());
    unlink(printed_page_of(path_, job_.first_rank + i).c_str());
  }
  remove_nodes(path_, job_.nodes);
  for (const char* name : {"/job.json", "/job.json.new"}) unlink((path_ + name).c_str());
  rmdir(path_.c_str());
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
  std::string page = rank_page_of(path_, rank);
  const std::string fresh = page + ".new";
  unlink(fresh.c_str());
  // The one who died, or is being ended, keeps its own.
  if (!group::make_rank_page(fresh) || std::rename(fresh.c_str(), page.c_str()) != 0)
    return "";
  unlink(printed_page_of(path_, rank).c_str());
  job_.replaced += replaces;
  if (replaces) write_job();
  return page;
}

std::unique_ptr<group::RankPage> StatusFolder::printed_page_for(int rank) {
  const std::string page = printed_page_of(path_, rank);
  if (path_.empty() || !group::make_rank_page(page)) return nullptr;
  try {
    return std::make_unique<group::RankPage>(page);
  } catch (const Error&) {
    // No descriptor is left, say: the job matters more. The next attempt makes it anew.
    unlink(page.c_str());
    return nullptr;
  }
}

void StatusFolder::write_job() const {
  if (path_.empty()) return;
  const std::string fresh = path_ + "/job.json.new";
  std::ofstream(fresh) << to_json(job_);
  std::rename(fresh.c_str(), (path_ + "/job.json").c_str());
}

}  // namespace brigade::launching
