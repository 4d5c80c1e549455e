// Starts one worker process, with the variables that a worker of `brigade run` finds:
// torchrun's, and a few more.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "brigade/launch.h"

namespace brigade::launching {

// The position of a host's workers in the job.
struct WorkerPlacement {
  int attempt = 0;
  int first_rank = 0;
  int world = 0;
  int node = 0;
  // The address of the store.
  std::string master;
  int port = 0;
  std::string run_id;
};

// `workers`: the number on this host.
std::map<std::string, std::string> worker_environment(int local_rank, int workers,
                                                      const WorkerPlacement& place,
                                                      const LaunchOptions& options);

// The work of a worker: it either calls a function or becomes a program.
struct WorkerBody {
  const std::function<void(int rank)>* function = nullptr;
  std::vector<std::string> command;
  // The path of the program's file.
  std::string path;
};

struct WorkerSpec {
  int rank = 0;
  // Changes to this process's own environment.
  std::map<std::string, std::string> environment;
  // Its stdin, stdout and stderr; -1: this process's own.
  int in = -1;
  int out = -1;
  int err = -1;
  // The signals that it starts with blocked.
  sigset_t mask;
  // Descriptors of the launcher that a worker that is not a program must close itself.
  std::vector<int> launchers_own;
};

// Finds the program's file as the shell would. Throws LaunchError: exit code 127 if there
// is none, 126 if it may not be run.
std::string find_program(const std::string& name);

// Forks. The worker leads a session and a process group of its own, so that it and its
// children can be signalled together and the terminal's Ctrl-C reaches only the launcher.
// SIGKILL ends it when the calling thread ends. Throws Error if the system lacks room.
pid_t spawn(const WorkerSpec& spec, const WorkerBody& body);

}  // namespace brigade::launching
