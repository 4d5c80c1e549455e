// Every process that belongs to a job: the workers, and what they started.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace brigade::launching {

// A process belongs to the processes when a worker's session or process group is its own,
// or when it was started with the job's id in its environment; so children that left the
// session, too, are found.
class JobProcesses {
 public:
  explicit JobProcesses(std::string job_id) : job_id_(std::move(job_id)) {}
  // The variable that every worker must have.
  static constexpr const char* kJobIdName = "BRIGADE_JOB";
  const std::string& job_id() const { return job_id_; }

  // REQUIRES: no worker's pid is reaped before `clear`, so that the number stays its own.
  void add(pid_t worker) { workers_.push_back(worker); }
  void clear() { workers_.clear(); }
  // Before one worker's pid is reaped.
  void remove(pid_t worker) { std::erase(workers_, worker); }

  // Those that run, or are stopped; not zombies.
  std::vector<pid_t> living() const;
  // Wakes stopped processes too, for they could not act on the signal.
  void signal(int signal) const;

 private:
  std::string job_id_;
  std::vector<pid_t> workers_;
};

// A process of its own that outlives the launcher by a moment: when the launcher dies
// without a word, by SIGKILL say, it kills the processes and removes the job's temporary
// folder.
class Guardian {
 public:
  // Forks. REQUIRES: as launch() with a function, unless this process only ever execs.
  // `temporary_folder`: empty where there is none.
  Guardian(const JobProcesses& processes, const std::string& temporary_folder);
  // Tells it that all is over, and waits until it has gone; one that does not go, because
  // it is stopped, is killed. Says on stderr if somebody else has ended it.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void add(pid_t worker);
  // As JobProcesses's.
  void remove(pid_t worker) { add(-worker); }
  int fd() const { return pipe_; }

 private:
  int pipe_ = -1;
  pid_t pid_ = -1;
};

// A text that no other job has.
std::string unique_job_id();

}  // namespace brigade::launching
