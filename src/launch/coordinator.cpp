#include "launch/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The intervals of polling for messages: while something is expected, and otherwise.
constexpr milliseconds kBusy{5};
constexpr milliseconds kIdle{100};

// The time within which a living process must answer.
constexpr milliseconds kMemberSilence{5000};
// The same for a launcher whose workers are waited for; it beats ten times a second.
constexpr milliseconds kFollowerSilence{1500};
// The least time for a worker to become ready: a limit for collectives may be short, but
// loading a program and its data takes time.
constexpr milliseconds kToBecomeReady{60'000};

std::string seconds_text(milliseconds time) {
  std::ostringstream text;
  const auto tenths = time.count() / 100;
  text << static_cast<double>(tenths) / 10 << " s";
  return text.str();
}

}  // namespace

Coordinator::Coordinator(const LaunchOptions& options, milliseconds limit)
    : options_(*options.elastic),
      max_hosts_(options.nodes),
      given_run_id_(options.run_id),
      limit_(limit),
      restarts_left_(options.max_restarts) {}

void Coordinator::serve(c10::intrusive_ptr<c10d::Store> store) {
  // This is the prefix of a worker's rendezvous; there is only one attempt.
  mail_ = std::make_unique<group::LauncherMailbox>(
      c10::make_intrusive<c10d::PrefixStore>("brigade/attempt_0", std::move(store)));
  membership_ = std::make_unique<Membership>(
      MembershipOptions{.min_workers = options_.min_workers,
                        .grace = options_.grace,
                        .silence = std::min(limit_, kMemberSilence),
                        .limit = std::max(limit_, kToBecomeReady)},
      *mail_);
  for (const auto& [worker, local_rank] : local_ranks_)
    membership_->started(worker, steady_clock::now());
}

void Coordinator::started(int worker, int local_rank) {
  local_ranks_[worker] = local_rank;
  if (membership_) membership_->started(worker, steady_clock::now());
}

int Coordinator::to_come() const {
  auto count = static_cast<int64_t>(to_start_.size());
  if (options_.replace) count += restarts_left_;
  for (const auto& [number, follower] : followers_) count += follower.to_start;
  return static_cast<int>(std::min<int64_t>(count, std::numeric_limits<int>::max()));
}

bool Coordinator::goes_on_without(int worker, bool ended_well, const base::Cause& how) {
  const int local_rank = local_ranks_[worker];
  local_ranks_.erase(worker);
  if (!membership_) return ended_well;
  // After the job has finished, a member must have exited with 0. A worker that came too
  // late is no member; this launcher ends it.
  if (membership_->finished()) {
    const bool needed = membership_->is_member(worker);
    membership_->ended(worker, how, steady_clock::now());
    return ended_well || !needed;
  }
  // A program that does not call join_job() ends as without --elastic.
  if (!membership_->known() && !ended_well) {
    over_ = (host_of(worker) ? how.text + "; " : "") +
            "no worker has called join_job(), so --elastic is of no use to it; "
            "without it --max-restarts starts all again";
    return false;
  }
  membership_->ended(worker, how, steady_clock::now());
  if (ended_well) return true;
  const bool replaced = options_.replace && restarts_left_ > 0;
  if (replaced) replace(worker, local_rank);
  over_ = why_over(steady_clock::now());
  std::fprintf(stderr, "brigade: %s; %s\n", how.text.c_str(),
               !over_.empty() ? over_.c_str()
               : !replaced    ? "the others go on"
                              : "the others go on, and a replacement is started");
  return over_.empty();
}

void Coordinator::replace(int worker, int local_rank) {
  --restarts_left_;
  if (host_of(worker) == 0) {
    to_start_.push_back(local_rank);
  } else {
    ++followers_.at(host_of(worker)).to_start;
    messages_->say(host_of(worker), "start " + std::to_string(local_rank));
  }
}

Actions Coordinator::poll() {
  Actions actions{.sleep = kIdle};
  if (!membership_) return actions;
  const Time now = steady_clock::now();
  if (messages_) hear_followers(now);
  // The first generation waits for the workers of a host that has already joined.
  const bool starting = membership_->generation() < 0 &&
                        std::ranges::any_of(followers_, [](const auto& follower) {
                          return follower.second.to_start > 0;
                        });
  // It also waits for a replacement that is about to be started.
  membership_->hold(hosts() < options_.min_nodes || starting || !to_start_.empty());
  membership_->turn(now);
  if (membership_->finished()) {
    to_start_.clear();
    actions.kill = late_workers();
  }
  if (over_.empty() && !local_ranks_.empty()) {
    over_ = why_over(now);
    if (!over_.empty()) std::fprintf(stderr, "brigade: %s\n", over_.c_str());
  }
  actions.start = std::exchange(to_start_, {});
  kill(membership_->take_stuck(), actions);
  if (messages_) tell_followers();
  actions.stay = over_.empty() && !followers_.empty();
  if (membership_->busy()) actions.sleep = kBusy;
  return actions;
}

// Returns this host's workers that are no members: when all is done none is needed.
std::vector<int> Coordinator::late_workers() const {
  std::vector<int> late;
  for (const auto& [worker, local_rank] : local_ranks_)
    if (host_of(worker) == 0 && !membership_->is_member(worker)) late.push_back(worker);
  return late;
}

// With several hosts others may still come, within a limit.
std::string Coordinator::why_over(Time now) {
  constexpr int kMany = std::numeric_limits<int>::max() / 2;
  if (membership_->finished()) return {};
  std::string why = membership_->why_over(messages_ ? kMany : to_come());
  if (!why.empty() || !messages_) return why;
  if (hosts() < options_.min_nodes) {
    why = std::to_string(hosts()) + (hosts() == 1 ? " host is" : " hosts are") +
          " there, and --nnodes asks for " + std::to_string(options_.min_nodes) +
          " at least";
  } else {
    why = membership_->why_over(to_come());
  }
  if (why.empty()) {
    short_since_.reset();
    return {};
  }
  if (!short_since_) short_since_ = now;
  if (now - *short_since_ < limit_) return {};
  return why + "; no other came within " + seconds_text(limit_);
}

void Coordinator::kill(const std::vector<int>& stuck, Actions& actions) {
  for (const int number : stuck) {
    const int host = host_of(number);
    if (host == 0) {
      actions.kill.push_back(number);
    } else if (followers_.at(host).told_to_kill.insert(number).second) {
      messages_->say(host, "kill " + std::to_string(number));
    }
  }
}

// ---- followers -------------------------------------------------------------------------

void Coordinator::open_to_followers(const c10::intrusive_ptr<c10d::Store>& store,
                                    int workers, const std::string& run_id) {
  messages_ = std::make_unique<HostMessages>(store, workers, run_id, given_run_id_);
}

void Coordinator::hear_followers(Time now) {
  for (const auto& [follower, text] : messages_->hear(now)) read(follower, text, now);
  lose_silent_followers(now);
}

void Coordinator::read(int follower, const std::string& text, Time now) {
  std::istringstream words(text);
  std::string what, rest;
  int number = 0, flag = 0;
  words >> what >> number;
  if (what == "hello") {
    std::getline(words >> std::ws, rest);
    return welcome(follower, rest, number);
  }
  const auto found = followers_.find(follower);
  if (found == followers_.end()) {  // it was dismissed
    if (what == "bye") messages_->forget(follower);
    return;
  }
  if (what == "bye") return lose(follower, "host " + found->second.name + " has left", now);
  if (host_of(number) != follower) return;
  words >> flag;
  if (what == "started") {
    if (found->second.to_start > 0) --found->second.to_start;
    started(number, flag);
  }
  if (what == "ended" && local_ranks_.contains(number)) {
    std::getline(words >> std::ws, rest);
    const int left = restarts_left_;
    goes_on_without(number, flag == 1, base::cause_from_json(rest));
    if (restarts_left_ == left) messages_->say(follower, "gone");
  }
}

void Coordinator::welcome(int follower, const std::string& name, int workers) {
  if (hosts() >= max_hosts_ || membership_->finished()) {
    messages_->say(follower, membership_->finished()
                                 ? "over 1 the job has come to its end"
                                 : "over 1 the job has all its " +
                                       std::to_string(max_hosts_) + " hosts; see --nnodes");
    return;
  }
  followers_[follower].name = name;
  followers_[follower].to_start = workers;
  std::fprintf(stderr, "brigade: host %s joins with %d worker%s\n", name.c_str(), workers,
               workers == 1 ? "" : "s");
}

void Coordinator::lose_silent_followers(Time now) {
  std::vector<std::pair<int, std::string>> lost;
  for (const auto& [number, follower] : followers_) {
    const auto silence = messages_->silence(number, now);
    const auto is_awaited = [this, host = number](const auto& worker) {
      return host_of(worker.first) == host && membership_->waits_for(worker.first);
    };
    const bool waited_for = std::ranges::any_of(local_ranks_, is_awaited);
    const bool hurry = waited_for || membership_->finished();
    if (silence <= (hurry ? std::min(limit_, kFollowerSilence) : limit_)) continue;
    lost.emplace_back(number, "host " + follower.name +
                                  " is lost: nothing was heard of it for " +
                                  seconds_text(silence));
  }
  for (const auto& [number, how] : lost) {
    messages_->say(number,
                   "over 1 the job goes on without this host: nothing was heard of it");
    lose(number, how, now);
  }
}

void Coordinator::lose(int follower, const std::string& how, Time now) {
  const bool finished = membership_->finished();
  followers_.erase(follower);
  messages_->forget(follower);
  std::erase_if(local_ranks_, [&](const auto& worker) {
    if (host_of(worker.first) != follower) return false;
    membership_->ended(worker.first, {.text = how}, now);
    return true;
  });
  if (finished || !over_.empty()) return;
  over_ = why_over(now);
  std::fprintf(stderr, "brigade: %s; %s\n", how.c_str(),
               over_.empty() ? "the others go on" : over_.c_str());
}

void Coordinator::tell_followers() {
  const bool finished = membership_->finished();
  for (auto& [number, follower] : followers_) {
    if (membership_->known() && !std::exchange(follower.told_known, true))
      messages_->say(number, "known");
    if (!finished || told_finished_) continue;
    std::string members;
    for (const auto& [worker, local_rank] : local_ranks_)
      if (host_of(worker) == number && membership_->is_member(worker))
        members += (members.empty() ? "" : ",") + std::to_string(worker);
    messages_->say(number, "finished " + members);
  }
  told_finished_ = finished;
}

void Coordinator::dismiss_followers(const std::string& text, int exit_code,
                                    milliseconds limit) {
  if (!messages_) return;
  for (const auto& [number, follower] : followers_)
    messages_->say(number, "over " + std::to_string(exit_code) + " " + text);
  const auto deadline = steady_clock::now() + limit;
  while (!followers_.empty() && steady_clock::now() < deadline) {
    for (const auto& [follower, said] : messages_->hear(steady_clock::now()))
      if (said == "bye") followers_.erase(follower);
    std::this_thread::sleep_for(kBusy);
  }
}

}  // namespace brigade::launching
