#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "brigade/launch.h"
#include "launch/job.h"

namespace brigade {
namespace launching {
namespace {

int threads_of_this_process() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

void check_elastic(int workers, const LaunchOptions& options) {
  const ElasticLaunch& elastic = *options.elastic;
  if (elastic.min_nodes < 1 || elastic.min_nodes > options.nodes) {
    throw ConfigError("min nodes is " + std::to_string(elastic.min_nodes) +
                      "; it must be 1 to the number of nodes, " +
                      std::to_string(options.nodes));
  }
  // Other hosts have workers, too.
  const bool too_many = options.nodes == 1 && elastic.min_workers > workers;
  if (elastic.min_workers < 1 || too_many) {
    throw ConfigError("min workers is " + std::to_string(elastic.min_workers) + "; with " +
                      std::to_string(workers) + " workers it must be 1 to " +
                      std::to_string(workers));
  }
  if (elastic.grace.count() < 0 || elastic.grace > std::chrono::hours(24)) {
    throw ConfigError("grace is " + std::to_string(elastic.grace.count()) +
                      " ms; it must be 0 to 86400000");
  }
}

void check(int workers, const LaunchOptions& options) {
  const auto refuse = [](const std::string& what) { throw ConfigError(what); };
  if (workers < 1 || workers > 4096) {
    refuse("workers is " + std::to_string(workers) + "; it must be 1 to 4096");
  }
  if (options.nodes < 1)
    refuse("nodes is " + std::to_string(options.nodes) + "; it must be 1 or more");
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    refuse("node rank is " + std::to_string(options.node_rank) + "; with " +
           std::to_string(options.nodes) + " nodes it must be 0 to " +
           std::to_string(options.nodes - 1));
  }
  if (options.nodes > 1 && options.master_port == 0) {
    refuse("several nodes need a master port that all of them know");
  }
  if (options.max_restarts < 0) {
    refuse("max restarts is " + std::to_string(options.max_restarts) +
           "; it must be 0 or more");
  }
  if (options.elastic) check_elastic(workers, options);
  for (int local_rank : options.local_ranks_filter) {
    if (local_rank >= 0 && local_rank < workers) continue;
    refuse("the filter of local ranks names " + std::to_string(local_rank) +
           "; this host has local ranks 0 to " + std::to_string(workers - 1));
  }
}

// If stdin, stdout or stderr was closed at the start, a later descriptor would get its
// number.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
  }
}

}  // namespace
}  // namespace launching

void launch(int workers, const std::function<void(int rank)>& function,
            const LaunchOptions& options) {
  launching::check(workers, options);
  if (!function) throw ConfigError("launch() got an empty function");
  if (options.nodes > 1) {
    throw ConfigError(
        "launch() of a function is for one host; use brigade run for several");
  }
  if (options.elastic && options.elastic->replace) {
    throw ConfigError(
        "launch() of a function cannot replace workers: they are forked before anything "
        "else; launch a program");
  }
  if (const int threads = launching::threads_of_this_process(); threads != 1) {
    throw ConfigError(
        "launch() of a function forks, and this process has " + std::to_string(threads) +
        " threads; call it before anything starts threads (torch's operators do)");
  }
  launching::open_standard_streams();
  const launching::WorkerBody body{.function = &function};
  launching::run_job(workers, body, options);
}

void launch(int workers, const std::vector<std::string>& command,
            const LaunchOptions& options) {
  launching::check(workers, options);
  if (command.empty() || command[0].empty()) throw ConfigError("launch() got no program");
  launching::open_standard_streams();
  const launching::WorkerBody body{.command = command,
                                   .path = launching::find_program(command[0])};
  launching::run_job(workers, body, options);
}

int threads_per_worker(int workers) {
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, count / std::max(1, workers));
}

}  // namespace brigade
