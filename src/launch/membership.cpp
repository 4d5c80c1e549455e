#include "launch/membership.h"

#include <algorithm>
#include <sstream>

namespace brigade::launching {

void Membership::started(int worker, Time now) {
  workers_[worker] = Worker{.since = now};
  mail_.add(worker);
}

void Membership::ended(int worker, const base::Cause& how, Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  const bool matters = found->second.member && !finished_;
  workers_.erase(found);
  mail_.remove(worker);
  if (matters) {
    gather(how.text, /*abort=*/true, now);
    // Its own failure explains more than its peers' errors, unless it is their echo.
    if (!base::is_echo(how.kind)) why_ = how.text;
  }
  // Another may have reported before this death that it has the state, too.
  read_mail(now);
}

void Membership::read_mail(Time now) {
  for (const auto& [worker, text] : mail_.receive()) read(worker, text, now);
}

void Membership::turn(Time now) {
  read_mail(now);
  if (finished_ || !gathering_) return;
  // Members that should all have come after a step are notified, too, if some have not.
  if (!told_ && generation_ >= 0 && now - *gathering_ > options_.silence)
    tell_that_it_is_over(now);
  condemn_silent(now);
  if (all_are_here(now)) publish(now);
}

void Membership::read(int worker, const std::string& text, Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  Worker& sender = found->second;
  std::istringstream words(text);
  std::string what;
  int number = -1;
  words >> what >> number;
  if (what == "heard" && number == generation_) sender.heard = true;
  if (what == "formed" && number == generation_) sender.holds_state = formed_ = true;
  if (what == "failed" && number == generation_ && sender.member && !sender.ready) {
    std::string why;
    std::getline(words >> std::ws, why);
    gather(why, /*abort=*/true, now);
  }
  if (what != "ready") return;
  int done = 0;
  words >> done;
  known_ = sender.ready = true;
  sender.done = done == 1;
  if (sender.member && !gathering_) {
    gather(sender.done ? "the end of the training" : "a worker waits to join",
           /*abort=*/false, now);
  }
  if (!sender.member && !gathering_ && !wanted_) {
    wanted_ = true;
    for (auto& [number, other] : workers_)
      if (other.member) mail_.send(number, "wanted " + std::to_string(generation_));
  }
}

void Membership::gather(const std::string& why, bool abort, Time now) {
  if (!gathering_) {
    gathering_ = now;
    why_ = why;
  }
  if (abort && !told_ && generation_ >= 0) tell_that_it_is_over(now);
}

void Membership::tell_that_it_is_over(Time now) {
  told_ = now;
  for (auto& [number, worker] : workers_) {
    if (worker.member && !worker.ready)
      mail_.send(number, "abort " + std::to_string(generation_) + " " + why_);
  }
}

void Membership::condemn_silent(Time now) {
  for (auto& [number, worker] : workers_) {
    if (worker.ready || worker.unresponsive) continue;
    const bool silent = worker.member && told_ && !worker.heard &&
                        now - *told_ > options_.silence && !is_last_with_state(worker);
    const bool late = worker.member ? told_ && now - *told_ > options_.limit
                                    : now - worker.since > options_.limit;
    worker.unresponsive = silent || late;
  }
}

// Without this worker the job is over, so a slow one gets the whole limit.
bool Membership::is_last_with_state(const Worker& worker) const {
  return worker.holds_state && std::ranges::count_if(workers_, [](const auto& entry) {
                                 return entry.second.holds_state;
                               }) == 1;
}

std::vector<int> Membership::take_stuck() {
  std::vector<int> stuck;
  for (auto& [number, worker] : workers_)
    if (worker.unresponsive) stuck.push_back(number);
  return stuck;
}

bool Membership::all_are_here(Time now) const {
  int ready = 0;
  bool newcomers_missing = false;
  for (const auto& [number, worker] : workers_) {
    ready += worker.ready;
    if (worker.ready) continue;
    if (worker.member) return false;
    newcomers_missing = true;
  }
  if (held_ || ready == 0 || ready < options_.min_workers) return false;
  // The first generation waits for all workers that were started.
  if (generation_ < 0) return !newcomers_missing;
  return !newcomers_missing || now - *gathering_ >= options_.grace;
}

void Membership::publish(Time now) {
  int members_left = 0, done = 0;
  for (const auto& [number, worker] : workers_) {
    members_left += worker.member;
    done += worker.member && worker.done;
  }
  // If all died before they had the state, their replacements begin the training.
  if (members_left > 0 && done == members_left) return finish();
  std::vector<int> members;
  // Workers that hold the state come first: nothing depends on it, but fewer ranks change.
  for (const bool holds : {true, false})
    for (const auto& [number, worker] : workers_)
      if (worker.ready && worker.holds_state == holds) members.push_back(number);
  std::string list;
  for (const int member : members)
    list += (list.empty() ? "" : ",") + std::to_string(member);
  ++generation_;
  for (auto& [number, worker] : workers_) {
    if (!worker.ready) continue;
    const auto rank = std::ranges::find(members, number) - members.begin();
    worker.member = true;
    worker.ready = worker.done = worker.heard = false;
    worker.since = now;
    mail_.send(number, "place " + std::to_string(generation_) + " " + std::to_string(rank) +
                           " " + list + " " + why_);
  }
  gathering_.reset();
  told_.reset();
  wanted_ = false;
}

void Membership::finish() {
  finished_ = true;
  gathering_.reset();
  for (auto& [number, worker] : workers_)
    if (worker.member) mail_.send(number, "finished");
}

std::string Membership::why_over(int to_come) const {
  if (finished_) return {};
  const auto living = static_cast<int64_t>(workers_.size());
  const bool held = std::ranges::any_of(
      workers_, [](const auto& entry) { return entry.second.holds_state; });
  if (formed_ && !held)
    return "no worker is left that has the state of the training; start it again from a "
           "checkpoint";
  if (living + to_come < options_.min_workers || living + to_come == 0)
    return std::to_string(living) + (living == 1 ? " worker is" : " workers are") +
           " left, fewer than --min-workers " + std::to_string(options_.min_workers);
  return {};
}

bool Membership::is_member(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.member;
}

bool Membership::waits_for(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.member && told_ && !found->second.heard &&
         !found->second.ready;
}

bool Membership::busy() const {
  return gathering_.has_value() || std::ranges::any_of(workers_, [](const auto& entry) {
           return !entry.second.member || !entry.second.holds_state;
         });
}

}  // namespace brigade::launching
