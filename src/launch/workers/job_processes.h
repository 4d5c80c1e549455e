// All processes of a job: the workers, and those that they started.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace brigade::launching {

// A process belongs to the job if its session or process group is a worker's, or if it
// started with the job's id in its environment, as children that left the session do.
class JobProcesses {
 public:
  explicit JobProcesses(std::string job_id) : job_id_(std::move(job_id)) {}
  // The variable that every worker must have.
  static constexpr const char* kJobIdName = "BRIGADE_JOB";
  const std::string& job_id() const { return job_id_; }

  // REQUIRES: no worker's pid is reaped before clear(), so that the number stays its own.
  void add(pid_t worker) { workers_.push_back(worker); }
  void clear() { workers_.clear(); }
  // To be called before one worker's pid is reaped.
  void remove(pid_t worker) { std::erase(workers_, worker); }

  // Returns running and stopped processes, not zombies.
  std::vector<pid_t> living() const;
  // Wakes stopped processes too, because they could not act on the signal.
  void signal(int signal) const;

 private:
  std::string job_id_;
  std::vector<pid_t> workers_;
};

// A separate process that outlives the launcher by a moment. If the launcher dies without
// cleaning up, say by SIGKILL, it kills the processes and removes the job's temporary
// folder.
class Guardian {
 public:
  // Forks. REQUIRES: the same as launch() with a function, unless this process only ever
  // execs. `temporary_folder`: empty if there is none.
  Guardian(const JobProcesses& processes, const std::string& temporary_folder);
  // Notifies it that all is over, and waits until it has gone; a stopped one is killed.
  // Reports on stderr if somebody else has ended it.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void add(pid_t worker);
  // Does what JobProcesses::remove() does.
  void remove(pid_t worker) { add(-worker); }
  int fd() const { return pipe_; }

 private:
  int pipe_ = -1;
  pid_t pid_ = -1;
};

// Returns a text that no other job has.
std::string unique_job_id();

}  // namespace brigade::launching
