#include "launch/attempt.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error_file.h"
#include "base/failure.h"
#include "group/store/mailbox.h"
#include "launch/workers/output.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

// How long a peer's own failure may take to show after a worker only lost that peer.
constexpr milliseconds kSettle{2000};
// How long after SIGKILL the launcher waits for processes that the kernel cannot end.
constexpr milliseconds kUnkillable{10'000};

struct Worker {
  // Counts workers in the order in which they were started.
  int number;
  int rank;
  int local_rank;
  std::unique_ptr<WorkerStreams> streams;
  pid_t pid = -1;
  int pidfd = -1;
  bool exited = false;
  int exit_code = 0;
  int signal = 0;
  // Whether it failed by itself, before the launcher ended anything.
  bool failed = false;
  // It stood still (SIGSTOP) when another failed, most likely by waiting for it.
  bool stopped = false;
  // Whether an elastic job went on without it.
  bool left_behind = false;
  system_clock::time_point when;
};

bool stands_still(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // a name may have any character
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

class Attempt {
 public:
  Attempt(const AttemptPlan& plan, const WorkerBody& body, const LaunchOptions& options,
          HeldSignals& signals, JobProcesses& processes, Guardian& guardian)
      : plan_(plan),
        body_(body),
        options_(options),
        signals_(signals),
        processes_(processes),
        guardian_(guardian) {}
  ~Attempt();

  AttemptResult run();

 private:
  void start(int local_rank);
  void wait();
  void pump();
  void take_signals();
  void collect_exits();
  bool goes_on_without(Worker& worker);
  void release(Worker& worker);
  void ask_the_job();
  void drain(Worker& worker);
  void enforce_limits();
  bool over();
  void end_all(int signal);
  void drain();
  void conclude();
  bool lost_its_peer(const Worker& worker) const;
  std::optional<base::RecordedError> recorded(const Worker& worker) const;
  WorkerFailure failure_of(const Worker& worker) const;

  const AttemptPlan& plan_;
  const WorkerBody& body_;
  const LaunchOptions& options_;
  HeldSignals& signals_;
  JobProcesses& processes_;
  Guardian& guardian_;
  std::vector<Worker> workers_;
  Actions actions_;
  AttemptResult result_;
  steady_clock::time_point started_ = steady_clock::now();
  bool ending_ = false;
  bool finished_ = false;
  std::optional<steady_clock::time_point> settle_until_;
  std::optional<steady_clock::time_point> term_at_;
  steady_clock::time_point kill_at_;
};

// An exception may have ended the attempt early; no process may be left.
Attempt::~Attempt() {
  const auto deadline = steady_clock::now() + kUnkillable;
  while (!finished_ && !processes_.living().empty() && steady_clock::now() < deadline) {
    processes_.signal(SIGKILL);
    usleep(5'000);
  }
  for (Worker& worker : workers_) {
    if (worker.pid > 0 && !worker.left_behind)
      waitpid(worker.pid, nullptr, worker.exited ? 0 : WNOHANG);
    if (worker.pidfd >= 0) close(worker.pidfd);
  }
  processes_.clear();
  guardian_.add(-1);
}

AttemptResult Attempt::run() {
  for (int i = 0; i < plan_.workers; ++i) start(i);
  if (plan_.started) plan_.started();
  ask_the_job();
  while (!over()) {
    wait();
    pump();
    take_signals();
    collect_exits();
    ask_the_job();
    enforce_limits();
  }
  finished_ = true;
  drain();
  conclude();
  return std::move(result_);
}

void Attempt::start(int local_rank) {
  const int rank = plan_.first_rank + local_rank;
  const int number = static_cast<int>(workers_.size());
  std::string folder = plan_.folder + "/" + std::to_string(local_rank);
  if (number >= plan_.workers) folder += "_" + std::to_string(number);
  std::filesystem::create_directories(folder);
  Worker worker{.number = number, .rank = rank, .local_rank = local_rank};
  worker.streams = std::make_unique<WorkerStreams>(options_, rank, local_rank, folder);
  WorkerSpec spec{.rank = rank, .environment = plan_.environment(local_rank)};
  spec.environment["TORCHELASTIC_ERROR_FILE"] = folder + "/error.json";
  if (const auto first = plan_.control.first_number())
    spec.environment[group::kWorkerNumber] = std::to_string(*first + number);
  spec.in = worker.streams->in();
  spec.out = worker.streams->out();
  spec.err = worker.streams->err();
  spec.mask = signals_.mask_before();
  spec.launchers_own = plan_.launchers_own;
  spec.launchers_own.insert(spec.launchers_own.end(), {guardian_.fd(), signals_.fd()});
  worker.pid = spawn(spec, body_);
  processes_.add(worker.pid);
  guardian_.add(worker.pid);
  worker.streams->close_workers_ends();
  // It wakes the loop when the worker ends; without it the loop wakes by itself.
  worker.pidfd = static_cast<int>(syscall(SYS_pidfd_open, worker.pid, 0));
  workers_.push_back(std::move(worker));
  plan_.control.started(number, local_rank);
}

void Attempt::wait() {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
  if (!ending_) fds.push_back({plan_.control.fd(), POLLIN, 0});
  bool soon = ending_ || settle_until_.has_value();
  bool all_exited = true;
  for (Worker& worker : workers_) {
    if (!worker.exited) fds.push_back({worker.pidfd, POLLIN, 0});
    all_exited = all_exited && worker.exited;
    soon = soon || worker.pidfd < 0;
    for (int stream : {1, 2}) {
      WorkerOutput* output = worker.streams->output(stream);
      if (output && output->fd() >= 0) fds.push_back({output->fd(), POLLIN, 0});
    }
  }
  milliseconds limit = actions_.sleep;
  if (options_.wall) {
    const auto left = *options_.wall - (steady_clock::now() - started_);
    limit = std::clamp(std::chrono::ceil<milliseconds>(left), milliseconds(0), limit);
  }
  // Children that outlive their worker wake nobody, so the loop checks again soon.
  if (soon || all_exited) limit = std::min(limit, milliseconds(10));
  poll(fds.data(), fds.size(), static_cast<int>(limit.count()));
}

void Attempt::pump() {
  for (Worker& worker : workers_) {
    for (int stream : {1, 2}) {
      WorkerOutput* output = worker.streams->output(stream);
      if (!output || output->pump() || stream == 2 || ending_) continue;
      // The launcher ends like any program whose reader has gone: brigade run ... | head.
      result_.interrupted = SIGPIPE;
      end_all(SIGTERM);
    }
  }
}

void Attempt::take_signals() {
  while (const int number = signals_.take()) {
    if (result_.interrupted) {
      // The user asked twice.
      kill_at_ = steady_clock::now();
      continue;
    }
    result_.interrupted = number;
    end_all(number);
    if (number != SIGTERM) term_at_ = steady_clock::now() + plan_.grace / 2;
  }
}

void Attempt::collect_exits() {
  for (Worker& worker : workers_) {
    if (worker.exited) continue;
    siginfo_t info{};
    // It is not reaped yet: its pid must stay its own while its group may be signalled.
    const int flags = WEXITED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, static_cast<id_t>(worker.pid), &info, flags) != 0 || !info.si_pid)
      continue;
    worker.exited = true;
    worker.when = system_clock::now();
    (info.si_code == CLD_EXITED ? worker.exit_code : worker.signal) = info.si_status;
    worker.failed = !ending_ && (worker.exit_code || worker.signal);
    if (!ending_ && goes_on_without(worker)) release(worker);
  }
  pump();
  if (ending_) return;
  for (const Worker& worker : workers_) {
    if (!worker.failed) continue;
    result_.over = plan_.control.over();
    const bool elastic = plan_.control.first_number().has_value();
    if (elastic || !lost_its_peer(worker)) return end_all(SIGTERM);
    if (!settle_until_) settle_until_ = steady_clock::now() + kSettle;
  }
}

bool Attempt::goes_on_without(Worker& worker) {
  const char* name = worker.signal ? sigabbrev_np(worker.signal) : nullptr;
  base::Cause how{.text = "rank " + std::to_string(worker.rank)};
  how.text += name ? std::string(" ended by SIG") + name
                   : " ended with exit code " + std::to_string(worker.exit_code);
  if (const auto error = recorded(worker)) {
    how.kind = error->kind.value_or(base::classify(error->message));
    how.rank = error->rank;
  }
  const bool well = !worker.exit_code && !worker.signal;
  return plan_.control.goes_on_without(worker.number, well, how) && !well;
}

// An elastic job may lose a thousand workers, so it keeps nothing of them.
void Attempt::release(Worker& worker) {
  worker.failed = false;
  worker.left_behind = true;
  kill(-worker.pid, SIGKILL);
  drain(worker);
  processes_.remove(worker.pid);
  guardian_.remove(worker.pid);
  waitpid(worker.pid, nullptr, 0);
  if (worker.pidfd >= 0) close(worker.pidfd);
  worker.pidfd = -1;
}

void Attempt::ask_the_job() {
  if (ending_) return;
  actions_ = plan_.control.poll();
  result_.ended_elsewhere = actions_.ended_elsewhere;
  result_.over = plan_.control.over();
  if (result_.ended_elsewhere || !result_.over.empty()) return end_all(SIGTERM);
  for (const int number : actions_.kill) {
    const Worker& worker = workers_.at(static_cast<size_t>(number));
    if (!worker.exited) kill(-worker.pid, SIGKILL);
  }
  for (const int local_rank : actions_.start) start(local_rank);
}

void Attempt::enforce_limits() {
  const auto now = steady_clock::now();
  if (!ending_ && settle_until_ && now >= *settle_until_) end_all(SIGTERM);
  if (!ending_ && options_.wall && now - started_ >= *options_.wall) {
    result_.past_wall = true;
    end_all(SIGTERM);
  }
  if (ending_ && term_at_ && now >= *term_at_) {
    processes_.signal(SIGTERM);
    term_at_.reset();
  }
  if (ending_ && now >= kill_at_) {
    processes_.signal(SIGKILL);
  }
}

bool Attempt::over() {
  const auto exited = [](const Worker& worker) { return worker.exited; };
  if (!std::ranges::all_of(workers_, exited)) return false;
  if (!ending_ && actions_.stay) return false;
  // If all here only lost their peer, the cause may show on another host.
  const bool settling = !ending_ && settle_until_ && steady_clock::now() < *settle_until_;
  if (settling && plan_.control.fd() >= 0) return false;
  if (processes_.living().empty()) return true;
  if (!ending_) end_all(SIGTERM);
  if (steady_clock::now() < kill_at_ + kUnkillable) return false;
  std::fprintf(stderr, "brigade: processes of this job do not end even by SIGKILL\n");
  return true;
}

void Attempt::end_all(int signal) {
  const bool failed = std::ranges::any_of(workers_, &Worker::failed);
  if (failed && !result_.ended_elsewhere) plan_.control.failed();
  for (Worker& worker : workers_)
    worker.stopped |= !worker.exited && failed && stands_still(worker.pid);
  ending_ = true;
  kill_at_ = steady_clock::now() + plan_.grace;
  processes_.signal(signal);
}

void Attempt::drain() {
  for (Worker& worker : workers_) drain(worker);
}

void Attempt::drain(Worker& worker) {
  for (int stream : {1, 2}) {
    WorkerOutput* output = worker.streams->output(stream);
    if (!output) continue;
    // No process of the job writes any more, so the pipe holds all that is left.
    for (pollfd ready{output->fd(), POLLIN, 0}; output->fd() >= 0;) {
      if (poll(&ready, 1, 0) <= 0) break;
      output->pump();
    }
    output->finish();
    if (stream == 1 && output->lost()) result_.output_lost = output->lost();
  }
}

std::optional<base::RecordedError> Attempt::recorded(const Worker& worker) const {
  return base::read_error_file(worker.streams->folder() + "/error.json");
}

// Whether a worker failed only because another had gone, which then is the cause.
bool Attempt::lost_its_peer(const Worker& worker) const {
  // Gloo writes to a closed connection without blocking SIGPIPE.
  if (worker.failed && worker.signal == SIGPIPE) return true;
  if (worker.failed && worker.signal && worker.signal != SIGABRT) return false;
  const auto says = [](const std::string& text) {
    return base::is_echo(base::classify(text));
  };
  if (const auto error = recorded(worker)) {
    if (error->rank && *error->rank != worker.rank) return true;
    // Only the text shows whether a peer's death ended a rendezvous.
    const bool untold = !error->kind || error->kind == Failure::rendezvous;
    return untold ? says(error->message) : base::is_echo(*error->kind);
  }
  const LastLines lines = worker.streams->last_lines();
  return std::ranges::any_of(lines.own(), says) || std::ranges::any_of(lines.rest(), says);
}

// Finds the first failure by time; workers that only lost their peer come last. A worker
// that had written its error file when the launcher ended it has failed too.
void Attempt::conclude() {
  if (result_.interrupted || result_.ended_elsewhere) return;
  struct Candidate {
    bool echo;
    system_clock::time_point when;
    const Worker* worker;
  };
  std::vector<Candidate> candidates;
  for (const Worker& worker : workers_) {
    const auto error = recorded(worker);
    if (worker.left_behind || (!worker.failed && !error)) continue;
    if (!worker.exit_code && !worker.signal) continue;
    const auto when = error ? std::min(error->when, worker.when) : worker.when;
    candidates.push_back({lost_its_peer(worker), when, &worker});
  }
  if (candidates.empty()) return;
  const auto earlier = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.echo, a.when) < std::tie(b.echo, b.when);
  };
  const Worker& first = *std::ranges::min_element(candidates, earlier)->worker;
  result_.failure = failure_of(first);
  for (const Worker& worker : workers_) {
    if (&worker == &first || (!worker.exit_code && !worker.signal)) continue;
    const char* name = worker.signal ? sigabbrev_np(worker.signal) : nullptr;
    result_.others.push_back(
        "rank " + std::to_string(worker.rank) +
        (worker.stopped ? ", which stood still (SIGSTOP?) while others waited," : "") +
        (name ? std::string(" ended by SIG") + name
              : " ended with exit code " + std::to_string(worker.exit_code)));
  }
}

WorkerFailure Attempt::failure_of(const Worker& worker) const {
  WorkerFailure failure{.rank = worker.rank,
                        .local_rank = worker.local_rank,
                        .attempt = plan_.attempt,
                        .host = plan_.host,
                        .pid = worker.pid,
                        .exit_code = worker.exit_code,
                        .signal = worker.signal};
  const auto error = recorded(worker);
  if (error) failure.message = error->message;
  // The launcher's own signal explains nothing; the recorded error has the exit code.
  if (!worker.failed && worker.signal)
    failure.exit_code = error ? error->exit_code : 1, failure.signal = 0;
  const LastLines lines = worker.streams->last_lines();
  failure.last_lines.assign(lines.shown().begin(), lines.shown().end());
  if (plan_.folder_is_kept) failure.log_path = worker.streams->folder();
  return failure;
}

}  // namespace

AttemptResult run_attempt(const AttemptPlan& plan, const WorkerBody& body,
                          const LaunchOptions& options, HeldSignals& signals,
                          JobProcesses& processes, Guardian& guardian) {
  return Attempt(plan, body, options, signals, processes, guardian).run();
}

}  // namespace brigade::launching
