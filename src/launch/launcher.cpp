#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "brigade/launch.h"
#include "launch/launcher_attempt.h"
#include "launch/launcher_report.h"
#include "launch/launcher_store.h"

namespace brigade {
namespace launching {
namespace {

using std::chrono::milliseconds;

int threads_of_this_process() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

milliseconds seconds_from(const char* variable, milliseconds fallback, double smallest) {
  const char* text = std::getenv(variable);
  if (!text) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end || !(value >= smallest && value <= 86'400)) {
    throw ConfigError(std::string(variable) + " is '" + text +
                      "'; it must be a number of seconds up to 86400");
  }
  return milliseconds(static_cast<std::int64_t>(value * 1000));
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
  for (int local_rank : options.local_ranks_filter) {
    if (local_rank >= 0 && local_rank < workers) continue;
    refuse("the filter of local ranks names " + std::to_string(local_rank) +
           "; this host has local ranks 0 to " + std::to_string(workers - 1));
  }
}

// A launcher that was started with stdin, stdout or stderr closed would hand out these
// numbers.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
  }
}

// The job's folder: logs, if any are asked for, and error files.
class JobFolder {
 public:
  JobFolder(const LaunchOptions& options, const std::string& run_id) {
    const auto logs = [](const StreamChoice& choice) {
      return choice.all != Streams::none || !choice.by_local_rank.empty();
    };
    kept_ = !options.log_dir.empty() || logs(options.redirects) || logs(options.tee);
    std::string base = options.log_dir;
    if (base.empty()) base = std::filesystem::temp_directory_path();
    std::error_code failed;
    std::filesystem::create_directories(base, failed);
    path_ = std::filesystem::absolute(base) / ("brigade_" + run_id + "_XXXXXX");
    // Private: what is in it decides what is reported.
    if (!mkdtemp(path_.data())) {
      throw ConfigError("cannot make a folder in '" + base + "': " + std::strerror(errno));
    }
  }
  ~JobFolder() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  bool kept() const { return kept_; }

 private:
  std::string path_;
  bool kept_ = false;
};

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

class Job {
 public:
  Job(int workers, const WorkerBody& body, const LaunchOptions& options)
      : workers_(workers),
        body_(body),
        options_(options),
        grace_(
            options.grace.value_or(seconds_from("BRIGADE_GRACE", milliseconds(5'000), 0))),
        family_(unique_mark()),
        run_id_(options.run_id.empty() ? family_.mark() : options.run_id),
        folder_(options, run_id_),
        watcher_(family_, folder_.kept() ? "" : folder_.path()) {}

  void run() {
    for (int attempt = 0;; ++attempt) {
      AttemptResult result = run_once(attempt);
      if (result.good()) return;
      if (!result.failure || attempt >= options_.max_restarts) give_up(result);
      std::fprintf(stderr, "brigade: rank %d failed: %s; restart %d of %d\n",
                   result.failure->rank, ending_of(*result.failure).c_str(), attempt + 1,
                   options_.max_restarts);
    }
  }

 private:
  AttemptResult run_once(int attempt) {
    // A store of its own for each attempt: nothing of the last one may be found in it.
    Listener listener(options_.master_addr, options_.master_port);
    c10::intrusive_ptr<c10d::Store> store;
    AttemptPlan plan{.attempt = attempt,
                     .workers = workers_,
                     .host = host_name(),
                     .folder = folder_.path() + "/attempt_" + std::to_string(attempt),
                     .folder_is_kept = folder_.kept(),
                     .grace = grace_};
    plan.environment = [&](int local_rank) {
      return environment(local_rank, 0, workers_, attempt, listener.port());
    };
    plan.launchers_own = {listener.fd()};
    plan.started = [&] { store = listener.serve(); };
    return run_attempt(plan, body_, options_, signals_, family_, watcher_);
  }

  std::map<std::string, std::string> environment(int local_rank, int first_rank, int world,
                                                 int attempt, int port) const {
    const std::string rank = std::to_string(first_rank + local_rank);
    std::map<std::string, std::string> variables{
        {"RANK", rank},
        {"LOCAL_RANK", std::to_string(local_rank)},
        {"WORLD_SIZE", std::to_string(world)},
        {"LOCAL_WORLD_SIZE", std::to_string(workers_)},
        {"GROUP_RANK", std::to_string(options_.node_rank)},
        {"GROUP_WORLD_SIZE", std::to_string(options_.nodes)},
        {"ROLE_RANK", rank},
        {"ROLE_WORLD_SIZE", std::to_string(world)},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", options_.master_addr},
        {"MASTER_PORT", std::to_string(port)},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCHELASTIC_RUN_ID", run_id_},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
        {WorkerFamily::kMarkName, family_.mark()}};
    const auto unless_set = [&](const char* name, const std::string& value) {
      if (!std::getenv(name)) variables[name] = value;
    };
    unless_set("OMP_NUM_THREADS", std::to_string(threads_per_worker(workers_)));
    unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    // Else what a Python worker prints would come when it ends, for its stdout is a pipe.
    unless_set("PYTHONUNBUFFERED", "1");
    for (const auto& [name, value] : options_.environment) variables[name] = value;
    return variables;
  }

  [[noreturn]] void give_up(const AttemptResult& result) const {
    if (result.failure) {
      throw LaunchError(report(*result.failure, result.others),
                        exit_code_of(*result.failure), result.failure);
    }
    if (result.past_wall) {
      throw LaunchError("the workers ran past the limit of " +
                            std::to_string(options_.wall->count() / 1000.0) +
                            " s and were ended",
                        124);
    }
    throw LaunchError(
        "interrupted by " + signal_name(result.interrupted) + "; all workers have ended",
        128 + result.interrupted);
  }

  int workers_;
  const WorkerBody& body_;
  const LaunchOptions& options_;
  milliseconds grace_;
  WorkerFamily family_;
  std::string run_id_;
  JobFolder folder_;
  Watcher watcher_;
  HeldSignals signals_;
};

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
  if (const int threads = launching::threads_of_this_process(); threads != 1) {
    throw ConfigError(
        "launch() of a function forks, and this process has " + std::to_string(threads) +
        " threads; call it before anything starts threads (torch's operators do)");
  }
  launching::open_standard_streams();
  const launching::WorkerBody body{.function = &function};
  launching::Job(workers, body, options).run();
}

void launch(int workers, const std::vector<std::string>& command,
            const LaunchOptions& options) {
  launching::check(workers, options);
  if (command.empty() || command[0].empty()) throw ConfigError("launch() got no program");
  launching::open_standard_streams();
  const launching::WorkerBody body{.command = command,
                                   .path = launching::find_program(command[0])};
  launching::Job(workers, body, options).run();
}

int threads_per_worker(int workers) {
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, count / std::max(1, workers));
}

}  // namespace brigade
