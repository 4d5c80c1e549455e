#include "launch/job.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "group/environment.h"
#include "launch/admission/first_node.h"
#include "launch/admission/forwarder.h"
#include "launch/admission/secret.h"
#include "launch/attempt.h"
#include "launch/elastic/guest_steward.h"
#include "launch/elastic/job_steward.h"
#include "launch/job_folder.h"
#include "launch/nodes.h"
#include "launch/report.h"
#include "launch/store.h"
#include "launch/workers/worker_environment.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Practically without limit: while others are heard, waiting for them is right.
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

// Out of the environment first, whichever counts: workers must not inherit it.
std::shared_ptr<const Secret> secret_of(const LaunchOptions& options) {
  auto named = Secret::from_environment();
  return options.secret_file.empty() ? std::move(named)
                                     : Secret::from_file(options.secret_file);
}

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

class Job {
 public:
  Job(int workers, const WorkerBody& body, const LaunchOptions& options)
      : secret_(secret_of(options)),
        workers_(workers),
        body_(body),
        options_(options),
        grace_(options.grace ? *options.grace
                             : seconds_from("BRIGADE_GRACE", milliseconds(5'000))),
        limit_(options.rendezvous ? *options.rendezvous
                                  : group::read_timeout(group::process_environment())
                                        .value_or(milliseconds(300'000))),
        family_(unique_mark()),
        run_id_(options.run_id.empty() ? family_.mark() : options.run_id),
        folder_(options, "brigade_" + run_id_),
        watcher_(family_, folder_.kept() ? "" : folder_.path()) {}

  void run();

 private:
  struct Wait {
    NodeNews news;
    int signal = 0;
    bool in_time = true;
  };

  std::optional<Verdict> run_alone(int attempt);
  std::optional<Verdict> run_first_host();
  std::optional<Verdict> run_as_guest();
  std::optional<Verdict> run_with_others(int attempt);
  std::optional<Verdict> wait_until_all_are_done(int attempt);
  int prepare_store(int attempt, StoreOpener& opener);
  int prepare_guarded_store(int attempt, StoreOpener& opener);
  void open_doors();
  NodeNews news();
  Place place_of_store(int attempt, int port) const;
  Place place_among(const NodeNews& news, int attempt) const;
  Verdict agree_on(std::optional<Verdict> own);
  void leave();
  template <class Ready>
  Wait await(milliseconds limit, Ready ready);
  AttemptResult run_workers(AttemptPlan& plan, const Place& place);
  std::optional<Verdict> verdict_on(const AttemptResult& result) const;
  Verdict interrupted_by(int signal) const;

  std::shared_ptr<const Secret> secret_;
  int workers_;
  const WorkerBody& body_;
  const LaunchOptions& options_;
  milliseconds grace_;
  milliseconds limit_;
  WorkerFamily family_;
  const std::string run_id_;
  JobFolder folder_;
  Watcher watcher_;
  HeldSignals signals_;
  // With several hosts only.
  std::unique_ptr<NodeLink> link_;
  c10::intrusive_ptr<c10d::Store> restarted_store_;
  // With several hosts and a secret only.
  std::shared_ptr<Forwarder> forwarder_;
  int workers_door_ = 0;
};

void Job::run() {
  for (int attempt = 0;; ++attempt) {
    const auto verdict = options_.nodes == 1       ? run_alone(attempt)
                         : !options_.elastic       ? run_with_others(attempt)
                         : options_.node_rank == 0 ? run_first_host()
                                                   : run_as_guest();
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

std::optional<Verdict> Job::run_alone(int attempt) {
  // A store of its own for each attempt: nothing of the last one may be found in it.
  const auto guarded = std::make_shared<GuardedStore>();
  c10::intrusive_ptr<c10d::Store> store;
  Forwarder forwarder(family_.mark(), limit_);
  Listener door(options_.master_addr, options_.master_port);
  forwarder.open_workers_door(door.release());
  forwarder.lead_to(attempt, guarded);
  AttemptPlan plan{.attempt = attempt};
  std::optional<JobSteward> steward;
  if (options_.elastic) {
    steward.emplace(options_, limit_);
    plan.steward = &*steward;
  }
  plan.launchers_own = forwarder.fds();
  for (int fd : guarded->fds()) plan.launchers_own.push_back(fd);
  plan.started = [&] {
    store = guarded->serve(run_id_);
    forwarder.start();
    if (steward) steward->serve(store);
  };
  plan.broken = [&] { return !forwarder.failure().empty(); };
  const Place place{.attempt = attempt,
                    .world = workers_,
                    .master = options_.master_addr,
                    .port = door.port(),
                    .run_id = run_id_};
  const AttemptResult result = run_workers(plan, place);
  if (result.ended_elsewhere) return Verdict{.text = forwarder.failure(), .final = true};
  return verdict_on(result);
}

// The first host of an elastic job: others come and go.
std::optional<Verdict> Job::run_first_host() {
  StoreOpener opener;
  const int port = secret_ ? prepare_guarded_store(0, opener) : prepare_store(0, opener);
  std::string why;
  const auto store = opener(why);
  Place place = place_of_store(0, port);
  place.world = workers_;
  place.run_id = run_id_;
  JobSteward steward(options_, limit_);
  AttemptPlan plan{.steward = &steward};
  plan.started = [&] {
    steward.serve(store);
    steward.open_to_guests(store, workers_, place.run_id);
  };
  plan.broken = [&] { return forwarder_ && !forwarder_->failure().empty(); };
  const AttemptResult result = run_workers(plan, place);
  auto verdict = verdict_on(result);
  if (result.ended_elsewhere)
    verdict = Verdict{.text = forwarder_->failure(), .final = true};
  if (verdict) {
    steward.dismiss_guests(verdict->text, verdict->exit_code,
                           std::min(limit_, grace_ + milliseconds(5'000)));
  }
  return verdict;
}

std::optional<Verdict> Job::run_as_guest() {
  StoreOpener opener;
  const int port = secret_ ? prepare_guarded_store(0, opener) : prepare_store(0, opener);
  const std::string address = group::endpoint(options_.master_addr, options_.master_port);
  GuestLink link({host_name(), workers_, options_.run_id}, address, std::move(opener), limit_);
  while (!link.entry()) {
    if (const std::string lost = link.lost(); !lost.empty())
      return Verdict{.text = lost, .final = true};
    if (const int signal = signals_.take()) return interrupted_by(signal);
    pollfd fds[]{{signals_.fd(), POLLIN, 0}, {link.fd(), POLLIN, 0}};
    poll(fds, 2, 100);
  }
  const GuestLink::Entry entry = *link.entry();
  Place place = place_of_store(0, port);
  place.first_rank = entry.first_rank;
  place.world = entry.first_rank + workers_;
  place.node = entry.guest;
  place.run_id = entry.run_id;
  GuestSteward steward(link);
  AttemptPlan plan{.steward = &steward};
  plan.elsewhere_fd = link.fd();
  plan.elsewhere = [] { return false; };  // the steward has read it
  plan.broken = [&] { return forwarder_ && !forwarder_->failure().empty(); };
  const AttemptResult result = run_workers(plan, place);
  if (result.ended_elsewhere) return Verdict{.text = forwarder_->failure(), .final = true};
  auto verdict = verdict_on(result);
  if (verdict && !verdict->failure && !result.over.empty())
    verdict->exit_code = steward.exit_code();
  return verdict;
}

// Several hosts without a secret: everybody connects to the store itself. Gives its port.
int Job::prepare_store(int attempt, StoreOpener& opener) {
  const FirstNode first{options_.master_addr, options_.master_port, limit_};
  if (options_.node_rank != 0) {
    opener = [first](std::string& why) { return open_store(first, why); };
    return first.port;
  }
  auto listener = std::make_shared<Listener>(first.host, attempt ? 0 : first.port);
  const int port = listener->port();
  // The first attempt's workers share the launchers' store, so that the port is the one
  // that the user chose, and opened in a firewall perhaps.
  if (attempt) restarted_store_ = listener->serve(run_id_);
  if (!attempt && !group::own_address(listener->fd()).loopback()) {
    std::fprintf(stderr,
                 "brigade: no secret: whoever reaches %s can take part in this job or end "
                 "it; see --secret\n",
                 group::endpoint(first.host, first.port).c_str());
  }
  opener = [listener, id = run_id_](std::string&) { return listener->serve(id); };
  return port;
}

// Several hosts with a secret: one port for all attempts.
int Job::prepare_guarded_store(int attempt, StoreOpener& opener) {
  if (!forwarder_) open_doors();
  if (options_.node_rank == 0) {
    const auto store = std::make_shared<GuardedStore>();
    if (attempt) restarted_store_ = store->serve(run_id_);
    opener = [store, id = run_id_](std::string&) { return store->serve(id); };
    forwarder_->lead_to(attempt, store);
    return options_.master_port;
  }
  forwarder_->begin(attempt);
  const FirstNode first{options_.master_addr, options_.master_port, limit_};
  const auto here = static_cast<std::uint16_t>(workers_door_);
  opener = [=, secret = secret_,
            forwarder = forwarder_](std::string& why) -> c10::intrusive_ptr<c10d::Store> {
    const auto there = knock(first, secret, why);
    if (!there) return nullptr;
    forwarder->lead_to({*there, secret});
    return open_store_through(here, first.limit);
  };
  return options_.master_port;
}

void Job::open_doors() {
  Listener workers("127.0.0.1", 0);
  workers_door_ = workers.port();
  forwarder_ = std::make_shared<Forwarder>(family_.mark(), limit_);
  forwarder_->open_workers_door(workers.release());
  if (options_.node_rank == 0) {
    Listener launchers(options_.master_addr, options_.master_port);
    forwarder_->open_launchers_door(launchers.release(), secret_);
  }
  forwarder_->start();
}

// The link's, and whether this host's own way to the store still works.
NodeNews Job::news() {
  NodeNews news = link_->news();
  if (const std::string failure = forwarder_ ? forwarder_->failure() : "";
      !failure.empty()) {
    news.lost = failure;
  }
  return news;
}

std::optional<Verdict> Job::run_with_others(int attempt) {
  StoreOpener opener;
  const int port =
      secret_ ? prepare_guarded_store(attempt, opener) : prepare_store(attempt, opener);
  if (!link_) {
    NodeState self{.node_rank = options_.node_rank,
                   .nodes = options_.nodes,
                   .mark = family_.mark(),
                   .host = host_name(),
                   .workers = workers_,
                   .run_id = run_id_,
                   .port = port,
                   .given_run_id = options_.run_id};
    link_ = std::make_unique<NodeLink>(self, options_, std::move(opener), limit_);
  }
  link_->join(attempt, port);
  const auto all_here = [&](const NodeNews& news) {
    return news.verdict || news.all_in(attempt, NodePhase::joining);
  };
  const Wait joined = await(limit_, all_here);
  if (joined.signal) return agree_on(interrupted_by(joined.signal));
  if (!joined.in_time) {
    return agree_on(
        Verdict{.text = joined.news.why_missing(attempt, limit_), .final = true});
  }
  if (!joined.news.lost.empty() || joined.news.verdict) return agree_on(std::nullopt);
  AttemptPlan plan{.attempt = attempt};
  plan.failed = [&] { link_->claim(); };
  plan.elsewhere_fd = link_->fd();
  plan.elsewhere = [&] {
    const NodeNews news = this->news();
    return news.claimed_by || !news.lost.empty();
  };
  const AttemptResult result = run_workers(plan, place_among(joined.news, attempt));
  if (!result.good()) return agree_on(verdict_on(result));
  return wait_until_all_are_done(attempt);
}

std::optional<Verdict> Job::wait_until_all_are_done(int attempt) {
  link_->enter(NodePhase::done);
  const Wait done = await(kAsLongAsItTakes, [&](const NodeNews& news) {
    return news.claimed_by || news.all_in(attempt, NodePhase::done);
  });
  if (done.signal) return agree_on(interrupted_by(done.signal));
  if (!done.news.lost.empty()) {
    // Our own part is done, and nobody is left to say how the rest ended.
    std::fprintf(stderr, "brigade: all workers of this host ended well, then %s\n",
                 done.news.lost.c_str());
    return std::nullopt;
  }
  if (done.news.claimed_by) return agree_on(std::nullopt);
  return std::nullopt;
}

Place Job::place_of_store(int attempt, int port) const {
  Place place{.attempt = attempt, .node = options_.node_rank};
  place.master = secret_ ? "127.0.0.1" : options_.master_addr;
  place.port = secret_ ? workers_door_ : port;
  return place;
}

Place Job::place_among(const NodeNews& news, int attempt) const {
  Place place = place_of_store(attempt, news.nodes[0]->port);
  for (int node = 0; node < options_.nodes; ++node) {
    const NodeState& state = *news.nodes[static_cast<size_t>(node)];
    if (node < options_.node_rank) place.first_rank += state.workers;
    place.world += state.workers;
  }
  place.run_id = news.nodes[0]->run_id;
  return place;
}

// What all nodes say: the verdict of the node whose claim came first.
Verdict Job::agree_on(std::optional<Verdict> own) {
  link_->claim();
  const auto claimed = [](const NodeNews& news) { return news.claimed_by || news.verdict; };
  const milliseconds patience = std::min(limit_, grace_ + milliseconds(15'000));
  Wait wait = await(patience, claimed);
  if (wait.news.claimed_by == options_.node_rank && own) link_->publish(*own);
  if (!wait.signal) {
    wait = await(patience, [](const NodeNews& news) { return news.verdict.has_value(); });
  }
  if (wait.signal) return interrupted_by(wait.signal);
  // A user who interrupted it here, by hand, wants to read that.
  if (wait.news.verdict && !(own && own->final)) return *wait.news.verdict;
  if (own) return *own;
  return {.text = wait.news.lost.empty()
                      ? "another host's launcher ended the job and did not say why"
                      : wait.news.lost,
          .final = true};
}

// Node 0 hosts the store, so it goes last.
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
    Wait wait{.news = news()};
    if (!wait.news.lost.empty() || ready(wait.news)) return wait;
    wait.signal = signals_.take();
    wait.in_time = steady_clock::now() < deadline;
    if (wait.signal || !wait.in_time) return wait;
    pollfd fds[]{{signals_.fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}};
    poll(fds, 2, 100);
  }
}

AttemptResult Job::run_workers(AttemptPlan& plan, const Place& place) {
  plan.workers = workers_;
  plan.first_rank = place.first_rank;
  plan.host = host_name();
  plan.folder = folder_.path() + "/attempt_" + std::to_string(place.attempt);
  plan.folder_is_kept = folder_.kept();
  plan.grace = grace_;
  plan.environment = [&](int local_rank) {
    auto variables = worker_environment(local_rank, workers_, place, options_,
                                        /*behind_forwarder=*/forwarder_ != nullptr);
    variables.emplace(WorkerFamily::kMarkName, family_.mark());
    return variables;
  };
  return run_attempt(plan, body_, options_, signals_, family_, watcher_);
}

std::optional<Verdict> Job::verdict_on(const AttemptResult& result) const {
  if (result.interrupted) return interrupted_by(result.interrupted);
  if (result.failure) {
    std::string text = report(*result.failure, result.others);
    if (!result.over.empty()) text += "\n  " + result.over;
    return Verdict{.text = std::move(text),
                   .exit_code = exit_code_of(*result.failure),
                   .failure = result.failure};
  }
  if (!result.over.empty()) return Verdict{.text = result.over, .final = true};
  if (result.past_wall) {
    return Verdict{.text = "the workers ran past the limit of " +
                           std::to_string(options_.wall->count()) + " ms and were ended",
                   .exit_code = 124,
                   .final = true};
  }
  if (result.output_lost) {
    return Verdict{.text = std::string("what the workers printed could not all be written "
                                       "to standard output: ") +
                           std::strerror(result.output_lost),
                   .final = true};
  }
  return std::nullopt;
}

Verdict Job::interrupted_by(int signal) const {
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
