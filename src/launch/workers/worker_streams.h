// Where a worker's stdin, stdout and stderr lead.
#pragma once
#include <optional>
#include <string>

#include "brigade/launch.h"
#include "launch/workers/worker_output.h"

namespace brigade::launching {

// The launcher's side of one worker's streams.
class WorkerStreams {
 public:
  // Opens pipes and log files (in `folder`) as the options ask.
  WorkerStreams(const LaunchOptions& options, int rank, int local_rank, std::string folder);
  ~WorkerStreams();
  WorkerStreams(const WorkerStreams&) = delete;
  WorkerStreams& operator=(const WorkerStreams&) = delete;

  // The worker's ends, -1: the launcher's own; gone once the worker has been started.
  int in() const { return in_; }
  int out() const { return out_.worker_end; }
  int err() const { return err_.worker_end; }
  void close_workers_ends();

  // The launcher's ends to read from; null where there is no pipe.
  WorkerOutput* output(int stream);
  LastLines last_lines() const;
  const std::string& folder() const { return folder_; }

 private:
  struct Side {
    int worker_end = -1;
    std::optional<WorkerOutput> output;
  };
  void open_side(Side& side, int stream, const LaunchOptions& options, int rank,
                 int local_rank);

  std::string folder_;
  int in_ = -1;
  Side out_;
  Side err_;
};

}  // namespace brigade::launching
