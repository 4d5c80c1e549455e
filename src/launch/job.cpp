#include "launch/job.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "group/environment.h"
#include "group/network.h"
#include "launch/attempt.h"
#include "launch/coordinator.h"
#include "launch/follower.h"
#include "launch/job_folder.h"
#include "launch/nodes.h"
#include "launch/report.h"
#include "launch/store.h"
#include "launch/workers/spawn.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// In practice this is no limit: as long as others are heard, waiting for them is right.
constexpr milliseconds kAsLongAsItTakes = std::chrono::hours(24 * 365);

milliseconds seconds_from(const char* variable, milliseconds fallback) {
  const char* text = std::getenv(variable);
  if (!text) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end || !(value >= 0 && value <= 86'400)) {
    throw ConfigError(std::string(variable) + " is '" + text +
                      "'; it must be a number of seconds from 0 to 86400");
  }
  return milliseconds(static_cast<std::int64_t>(value * 1000));
}

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

// A job's store, before this launcher has opened it.
struct PreparedStore {
  int port = 0;
  StoreOpener open;
  // The listening socket if this launcher hosts the store; workers must close it.
  std::vector<int> descriptors = {};
};

// One attempt of a job on several hosts: the first failure on any of them ends it.
class NodesControl : public JobControl {
 public:
  explicit NodesControl(NodeLink& link) : link_(link) {}
  void failed() override { link_.claim(); }
  int fd() const override { return link_.fd(); }
  Actions poll() override {
    const NodeNews news = link_.news();
    return {.ended_elsewhere = news.claimed_by || !news.lost.empty()};
  }

 private:
  NodeLink& link_;
};

class Job {
 public:
  Job(int workers, const WorkerBody& body, const LaunchOptions& options)
      : workers_(workers),
        body_(body),
        options_(options),
        grace_(options.grace ? *options.grace
                             : seconds_from("BRIGADE_GRACE", milliseconds(5'000))),
        limit_(options.rendezvous ? *options.rendezvous
                                  : group::read_timeout(group::process_environment())
                                        .value_or(milliseconds(300'000))),
        processes_(unique_job_id()),
        run_id_(options.run_id.empty() ? processes_.job_id() : options.run_id),
        folder_(options, "brigade_" + run_id_),
        guardian_(processes_, folder_.kept() ? "" : folder_.path()) {}

  void run();

 private:
  struct Wait {
    NodeNews news;
    int signal = 0;
    bool in_time = true;
  };

  std::optional<JobResult> run_alone(int attempt);
  std::optional<JobResult> run_first_host();
  std::optional<JobResult> run_as_follower();
  std::optional<JobResult> run_with_others(int attempt);
  std::optional<JobResult> wait_until_all_are_done(int attempt);
  PreparedStore host_store(std::uint16_t port) const;
  PreparedStore reach_store() const;
  WorkerPlacement placement_at_store(int attempt, int port) const;
  WorkerPlacement placement_among(const NodeNews& news, int attempt) const;
  JobResult settle(std::optional<JobResult> own);
  void leave();
  template <class Ready>
  Wait await(milliseconds limit, Ready ready);
  AttemptResult run_workers(AttemptPlan& plan, const WorkerPlacement& place);
  std::optional<JobResult> result_of(const AttemptResult& result) const;
  JobResult interrupted_by(int signal) const;

  int workers_;
  const WorkerBody& body_;
  const LaunchOptions& options_;
  milliseconds grace_;
  milliseconds limit_;
  JobProcesses processes_;
  const std::string run_id_;
  JobFolder folder_;
  Guardian guardian_;
  HeldSignals signals_;
  // Null unless a static job has several hosts.
  std::unique_ptr<NodeLink> link_;
  c10::intrusive_ptr<c10d::Store> restarted_store_;
};

void Job::run() {
  for (int attempt = 0;; ++attempt) {
    const auto verdict = options_.nodes == 1       ? run_alone(attempt)
                         : !options_.elastic       ? run_with_others(attempt)
                         : options_.node_rank == 0 ? run_first_host()
                                                   : run_as_follower();
    const bool restart =
        verdict && !verdict->final && !options_.elastic && attempt < options_.max_restarts;
    if (!restart && link_) leave();
    if (!verdict) return;
    if (!restart) throw LaunchError(verdict->text, verdict->exit_code, verdict->failure);
    std::fprintf(stderr, "brigade: %s; restart %d of %d\n",
                 verdict->text.substr(0, verdict->text.find('\n')).c_str(), attempt + 1,
                 options_.max_restarts);
  }
}

std::optional<JobResult> Job::run_alone(int attempt) {
  // Each attempt has a store of its own, because the last one's keys must not be found.
  const PreparedStore prepared = host_store(options_.master_port);
  c10::intrusive_ptr<c10d::Store> store;
  JobControl alone;
  std::optional<Coordinator> coordinator;
  if (options_.elastic) coordinator.emplace(options_, limit_);
  AttemptPlan plan{.control = coordinator ? *coordinator : alone,
                   .attempt = attempt,
                   .launchers_own = prepared.descriptors};
  plan.started = [&] {
    std::string why;
    store = prepared.open(why);
    if (coordinator) coordinator->serve(store);
  };
  WorkerPlacement place = placement_at_store(attempt, prepared.port);
  place.world = workers_;
  place.run_id = run_id_;
  return result_of(run_workers(plan, place));
}

// Runs the first host of an elastic job; others come and go.
std::optional<JobResult> Job::run_first_host() {
  const PreparedStore prepared = host_store(options_.master_port);
  std::string why;
  const auto store = prepared.open(why);
  WorkerPlacement place = placement_at_store(0, prepared.port);
  place.world = workers_;
  place.run_id = run_id_;
  Coordinator coordinator(options_, limit_);
  AttemptPlan plan{.control = coordinator, .launchers_own = prepared.descriptors};
  plan.started = [&] {
    coordinator.serve(store);
    coordinator.open_to_followers(store, workers_, place.run_id);
  };
  auto verdict = result_of(run_workers(plan, place));
  if (verdict) {
    coordinator.dismiss_followers(verdict->text, verdict->exit_code,
                                  std::min(limit_, grace_ + milliseconds(5'000)));
  }
  return verdict;
}

std::optional<JobResult> Job::run_as_follower() {
  PreparedStore prepared = reach_store();
  const std::string address = group::endpoint(options_.master_addr, options_.master_port);
  HostLink link({host_name(), workers_, options_.run_id}, address, std::move(prepared.open),
                limit_);
  while (!link.entry()) {
    if (const std::string lost = link.lost(); !lost.empty())
      return JobResult{.text = lost, .final = true};
    if (const int signal = signals_.take()) return interrupted_by(signal);
    pollfd fds[]{{signals_.fd(), POLLIN, 0}, {link.fd(), POLLIN, 0}};
    poll(fds, 2, 100);
  }
  const HostLink::Entry entry = *link.entry();
  WorkerPlacement place = placement_at_store(0, prepared.port);
  place.first_rank = entry.first_rank;
  place.world = entry.first_rank + workers_;
  place.node = entry.follower;
  place.run_id = entry.run_id;
  Follower coordinator(link);
  AttemptPlan plan{.control = coordinator};
  const AttemptResult result = run_workers(plan, place);
  auto verdict = result_of(result);
  if (verdict && !verdict->failure && !result.over.empty())
    verdict->exit_code = coordinator.exit_code();
  return verdict;
}

// Takes the port at once; 0: a free one.
PreparedStore Job::host_store(std::uint16_t port) const {
  auto listener = std::make_shared<Listener>(options_.master_addr, port);
  const bool loopback = group::own_address(listener->fd()).loopback();
  // This is printed once, not for the stores of restarts, which have ports of their own.
  if (options_.nodes > 1 && port != 0 && !loopback) {
    std::fprintf(stderr,
                 "brigade: whoever reaches %s can take part in this job or end it; on a "
                 "network that others share use WireGuard, see docs/launching.md\n",
                 group::endpoint(options_.master_addr, port).c_str());
  }
  PreparedStore prepared{.port = listener->port(), .descriptors = {listener->fd()}};
  prepared.open = [listener = std::move(listener), id = run_id_](std::string&) {
    return listener->serve(id);
  };
  return prepared;
}

// Returns the store of node 0's launcher.
PreparedStore Job::reach_store() const {
  const std::string& host = options_.master_addr;
  const std::uint16_t port = options_.master_port;
  return {.port = port, .open = [host, port, limit = limit_](std::string& why) {
            return open_store(host, port, limit, why);
          }};
}

std::optional<JobResult> Job::run_with_others(int attempt) {
  // The first attempt's workers share the launchers' store, so that its port is the one
  // that the user chose, and perhaps opened in a firewall.
  const bool hosts = options_.node_rank == 0;
  PreparedStore prepared =
      hosts ? host_store(attempt ? 0 : options_.master_port) : reach_store();
  const int port = prepared.port;
  if (hosts && attempt) {
    std::string why;
    restarted_store_ = prepared.open(why);
  }
  if (!link_) {
    NodeState self{.node_rank = options_.node_rank,
                   .nodes = options_.nodes,
                   .job_id = processes_.job_id(),
                   .host = host_name(),
                   .workers = workers_,
                   .run_id = run_id_,
                   .port = port,
                   .given_run_id = options_.run_id};
    link_ = std::make_unique<NodeLink>(self, options_, std::move(prepared.open), limit_);
  }
  link_->join(attempt, port);
  const auto all_here = [&](const NodeNews& news) {
    return news.verdict || news.all_in(attempt, NodePhase::joining);
  };
  const Wait joined = await(limit_, all_here);
  if (joined.signal) return settle(interrupted_by(joined.signal));
  if (!joined.in_time) {
    return settle(
        JobResult{.text = joined.news.why_missing(attempt, limit_), .final = true});
  }
  if (!joined.news.lost.empty() || joined.news.verdict) return settle(std::nullopt);
  NodesControl nodes(*link_);
  AttemptPlan plan{
      .control = nodes, .attempt = attempt, .launchers_own = prepared.descriptors};
  const AttemptResult result = run_workers(plan, placement_among(joined.news, attempt));
  if (!result.good()) return settle(result_of(result));
  return wait_until_all_are_done(attempt);
}

std::optional<JobResult> Job::wait_until_all_are_done(int attempt) {
  link_->enter(NodePhase::done);
  const Wait done = await(kAsLongAsItTakes, [&](const NodeNews& news) {
    return news.claimed_by || news.all_in(attempt, NodePhase::done);
  });
  if (done.signal) return settle(interrupted_by(done.signal));
  if (!done.news.lost.empty()) {
    // This host's part is done, and no other launcher is left to report how the rest ended.
    std::fprintf(stderr, "brigade: all workers of this host ended well, then %s\n",
                 done.news.lost.c_str());
    return std::nullopt;
  }
  if (done.news.claimed_by) return settle(std::nullopt);
  return std::nullopt;
}

WorkerPlacement Job::placement_at_store(int attempt, int port) const {
  WorkerPlacement place{.attempt = attempt, .node = options_.node_rank};
  place.master = options_.master_addr;
  place.port = port;
  return place;
}

WorkerPlacement Job::placement_among(const NodeNews& news, int attempt) const {
  WorkerPlacement place = placement_at_store(attempt, news.nodes[0]->port);
  for (int node = 0; node < options_.nodes; ++node) {
    const NodeState& state = *news.nodes[static_cast<size_t>(node)];
    if (node < options_.node_rank) place.first_rank += state.workers;
    place.world += state.workers;
  }
  place.run_id = news.nodes[0]->run_id;
  return place;
}

// Returns what all nodes report: the verdict of the node that claimed first.
JobResult Job::settle(std::optional<JobResult> own) {
  link_->claim();
  const auto claimed = [](const NodeNews& news) { return news.claimed_by || news.verdict; };
  const milliseconds patience = std::min(limit_, grace_ + milliseconds(15'000));
  Wait wait = await(patience, claimed);
  if (wait.news.claimed_by == options_.node_rank && own) link_->publish(*own);
  if (!wait.signal) {
    wait = await(patience, [](const NodeNews& news) { return news.verdict.has_value(); });
  }
  if (wait.signal) return interrupted_by(wait.signal);
  // A user who interrupted the job on this host wants to read that.
  if (wait.news.verdict && !(own && own->final)) return *wait.news.verdict;
  if (own) return *own;
  return {.text = wait.news.lost.empty()
                      ? "another host's launcher ended the job and did not say why"
                      : wait.news.lost,
          .final = true};
}

// Node 0 hosts the store, so it leaves last.
void Job::leave() {
  link_->enter(NodePhase::left);
  if (options_.node_rank != 0) return;
  await(std::min(limit_, grace_ + milliseconds(5'000)), [&](const NodeNews& news) {
    return std::ranges::all_of(news.nodes, [](const auto& node) {
      return !node || node->phase == NodePhase::left || node->node_rank == 0;
    });
  });
}

template <class Ready>
Job::Wait Job::await(milliseconds limit, Ready ready) {
  const auto deadline = steady_clock::now() + limit;
  while (true) {
    Wait wait{.news = link_->news()};
    if (!wait.news.lost.empty() || ready(wait.news)) return wait;
    wait.signal = signals_.take();
    wait.in_time = steady_clock::now() < deadline;
    if (wait.signal || !wait.in_time) return wait;
    pollfd fds[]{{signals_.fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}};
    poll(fds, 2, 100);
  }
}

AttemptResult Job::run_workers(AttemptPlan& plan, const WorkerPlacement& place) {
  plan.workers = workers_;
  plan.first_rank = place.first_rank;
  plan.host = host_name();
  plan.folder = folder_.path() + "/attempt_" + std::to_string(place.attempt);
  plan.folder_is_kept = folder_.kept();
  plan.grace = grace_;
  plan.environment = [&](int local_rank) {
    auto variables = worker_environment(local_rank, workers_, place, options_);
    variables.emplace(JobProcesses::kJobIdName, processes_.job_id());
    return variables;
  };
  return run_attempt(plan, body_, options_, signals_, processes_, guardian_);
}

std::optional<JobResult> Job::result_of(const AttemptResult& result) const {
  if (result.interrupted) return interrupted_by(result.interrupted);
  if (result.failure) {
    std::string text = report(*result.failure, result.others);
    if (!result.over.empty()) text += "\n  " + result.over;
    return JobResult{.text = std::move(text),
                     .exit_code = exit_code_of(*result.failure),
                     .failure = result.failure};
  }
  if (!result.over.empty()) return JobResult{.text = result.over, .final = true};
  if (result.past_wall) {
    return JobResult{.text = "the workers ran past the limit of " +
                             std::to_string(options_.wall->count()) + " ms and were ended",
                     .exit_code = 124,
                     .final = true};
  }
  if (result.output_lost) {
    return JobResult{
        .text = std::string("what the workers printed could not all be written "
                            "to standard output: ") +
                std::strerror(result.output_lost),
        .final = true};
  }
  return std::nullopt;
}

JobResult Job::interrupted_by(int signal) const {
  const char* name = sigabbrev_np(signal);
  return {.text = "interrupted by SIG" + std::string(name ? name : "?") + " on " +
                  host_name() + "; all workers have ended",
          .exit_code = 128 + signal,
          .final = true};
}

}  // namespace

void run_job(int workers, const WorkerBody& body, const LaunchOptions& options) {
  Job(workers, body, options).run();
}

}  // namespace brigade::launching
