// SPDX-License-Identifier: BSD-3-Clause
// Starts workers: several processes of one job, each a rank, watched until all have ended.
// The brigade run command is a thin layer over this header.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brigade/error.h"

namespace brigade {

// A choice of a worker's two output streams.
enum class Streams : std::uint8_t { none = 0, out = 1, err = 2, all = 3 };
// A choice for every worker, with exceptions for some local ranks.
struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> by_local_rank = {};
};

// Options of a job that goes on when workers die, see brigade/elastic.h. With nodes > 1,
// hosts may come and go while it trains: node 0's launcher has the store and decides; any
// other node_rank only means that this host joins.
struct ElasticLaunch {
  // Fewer workers do not train: they wait for replacements, or the job ends.
  int min_workers = 1;
  // Training begins with this many hosts, 1 to nodes. If fewer are left, they wait for
  // others, `rendezvous` at most; hosts beyond `nodes` are refused.
  int min_nodes = 1;
  // A dead worker is replaced by a new one, max_restarts times in all.
  bool replace = false;
  // How long survivors wait for a replacement before they continue without it; it then
  // joins after a step.
  std::chrono::milliseconds grace{0};
};

struct LaunchOptions {
  // -- Who takes part --

  // Hosts of the job. With more than one, every host runs its own launcher with the same
  // nodes, master_addr and master_port, and a node_rank of its own; the launcher of node 0
  // hosts the store.
  int nodes = 1;
  int node_rank = 0;
  // Where the store listens: an address or name of node 0's host. Anyone who can reach it
  // can join the job, or end it.
  std::string master_addr = "127.0.0.1";
  // 0: a free port, on one host only.
  std::uint16_t master_port = 0;
  // TORCHELASTIC_RUN_ID of the workers. Empty: generated. Launchers that were given
  // different ones belong to two jobs, and refuse each other.
  std::string run_id = {};
  // Further variables of the workers.
  std::map<std::string, std::string> environment = {};
  // How often all workers are restarted after one has failed; in an elastic job, how many
  // workers are replaced.
  int max_restarts = 0;
  // If not set, the first worker that fails ends the attempt.
  std::optional<ElasticLaunch> elastic = {};

  // -- Time limits --

  // Time between SIGTERM and SIGKILL to workers that do not end. BRIGADE_GRACE (seconds, 0
  // to 86400) changes the default of 5 s.
  std::optional<std::chrono::milliseconds> grace = {};
  // Limit of one attempt; none: no limit.
  std::optional<std::chrono::milliseconds> wall = {};
  // Limit for the launchers of several hosts to find each other, and for the silence of
  // one. BRIGADE_TIMEOUT (seconds) changes the default of 300 s.
  std::optional<std::chrono::milliseconds> rendezvous = {};

  // -- Output --

  // True: workers' output appears line by line, after "[rank] ". False: they write to this
  // process's own stdout and stderr, and failure reports lack their last lines.
  bool prefix = true;
  // A folder for logs and error files: DIR/brigade_RUN_ID_XXXXXX/attempt_K/LOCAL_RANK/
  // {stdout.log, stderr.log, error.json}; XXXXXX makes the folder a new one. Empty: a
  // fresh temporary folder, removed at the end unless it has logs.
  std::string log_dir = {};
  // Streams that go to files only, and streams that go to files and the console.
  StreamChoice redirects = {};
  StreamChoice tee = {};
  // Only these local ranks appear on the console; empty: all.
  std::vector<int> local_ranks_filter = {};
};

// How one worker ended.
struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  int attempt = 0;
  std::string host = {};
  std::int64_t pid = 0;
  // Exactly one of the two is not 0.
  int exit_code = 0;
  int signal = 0;
  // The message in its error file; empty when it wrote none.
  std::string message = {};
  // The last lines it wrote to stderr.
  std::vector<std::string> last_lines = {};
  // The folder of its logs; empty when it has none.
  std::string log_path = {};
};

// A job that did not end well. The text is a report for people, of several lines.
class BRIGADE_API LaunchError : public Error {
 public:
  LaunchError(const std::string& report, int exit_code,
              std::optional<WorkerFailure> failure = {})
      : Error(report), exit_code_(exit_code), failure_(std::move(failure)) {}
  // The exit code for a launching program: the worker's exit code, or 128 + its signal; 128
  // + the signal that ended the launcher; 124 for the wall limit; 127 for a program that
  // cannot be found, 126 for one that cannot be run.
  int exit_code() const { return exit_code_; }
  // The worker that failed first, on any host; none when the job was interrupted.
  const std::optional<WorkerFailure>& failure() const { return failure_; }

 private:
  int exit_code_;
  std::optional<WorkerFailure> failure_;
};

// Forks `workers` processes that call `function` with their rank, and returns when all have
// returned. Each has the variables that torchrun sets, so init_process_group() finds its
// peers. An exception that leaves `function` is that worker's failure.
//
// When one worker fails, the others are ended: SIGTERM, `grace`, SIGKILL, each to the whole
// process group. Then all are restarted, `max_restarts` times at most, or LaunchError is
// thrown. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the workers and end the job
// with LaunchError. When this process dies, by SIGKILL too, the workers die.
//
// REQUIRES: the calling process has one thread; otherwise it throws ConfigError, because a
// fork would copy locks that are never released. Torch's thread pools count: compute in the
// workers. Throws ConfigError (options), RendezvousError (store, other hosts), LaunchError.
BRIGADE_API void launch(int workers, const std::function<void(int rank)>& function,
                        const LaunchOptions& options = {});

// The same for a program: `command` is its name, looked up in PATH unless it has a slash,
// and its arguments. The calling process may have threads; then signals reach the job only
// if all of them block these signals.
BRIGADE_API void launch(int workers, const std::vector<std::string>& command,
                        const LaunchOptions& options = {});

// The default of OMP_NUM_THREADS that launch() sets for each of `workers` on this host:
// max(1, cores / workers).
BRIGADE_API int threads_per_worker(int workers);

// For the main() of a worker program: calls `function`, and returns main()'s exit code: 0,
// 2 for ConfigError, 1 for other exceptions. An exception is printed to stderr, and written
// to TORCHELASTIC_ERROR_FILE if a launcher has set that, so that it can show the cause.
BRIGADE_API int record_errors(const std::function<void()>& function);

}  // namespace brigade
