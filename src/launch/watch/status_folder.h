// The folder in which a job of this host can be watched: a page for each worker, and
// job.json. In memory, where the system has a place for that, so that no worker waits for a
// disk.
#pragma once
#include <memory>
#include <string>

#include "group/live/rank_page.h"
#include "launch/watch/job_info.h"

namespace brigade::launching {

// A folder that cannot be made is no reason not to train: the job is not watched then.
// Removed at the end.
class StatusFolder {
 public:
  explicit StatusFolder(JobInfo job);
  ~StatusFolder();
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;

  // Empty: there is none.
  const std::string& path() const { return path_; }
  // All workers are about to start.
  void begin_attempt(int attempt, int first_rank, int world, const std::string& run_id);
  // A fresh page for that worker, which starts now; empty: there is none. `replaces`: it
  // takes the place of one that died.
  std::string page_for(int rank, bool replaces);
  // A page for the losses that this worker prints; null: it cannot be had.
  std::unique_ptr<group::RankPage> printed_page_for(int rank);

 private:
  void write_job() const;

  JobInfo job_;
  std::string path_;
};

}  // namespace brigade::launching
