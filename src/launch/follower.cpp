#include "launch/follower.h"

#include <sstream>

namespace brigade::launching {
namespace {

// A message of the first host wakes the attempt's loop; its silence does not.
constexpr std::chrono::milliseconds kSleep{100};

}  // namespace

Follower::Follower(HostLink& link) : link_(link), follower_(link.entry()->follower) {}

void Follower::started(int worker, int local_rank) {
  living_.insert(worker);
  link_.say("started " + std::to_string(number_of(worker)) + " " +
            std::to_string(local_rank));
}

bool Follower::goes_on_without(int worker, bool ended_well, const base::Cause& how) {
  living_.erase(worker);
  ++unanswered_;
  link_.say("ended " + std::to_string(number_of(worker)) + (ended_well ? " 1 " : " 0 ") +
            base::to_json(how));
  if (finished_) return ended_well || !is_member(worker);
  return known_ || ended_well;
}

Actions Follower::poll() {
  Actions actions{.sleep = kSleep};
  for (const std::string& text : link_.hear()) read(text, actions);
  if (finished_) {
    actions.start.clear();
    for (const int worker : living_)
      if (!is_member(worker)) actions.kill.push_back(worker);
    return actions;
  }
  if (over_.empty()) over_ = link_.lost();
  if (over_.empty() && living_.empty() && unanswered_ == 0 && actions.start.empty())
    over_ = "no worker of this host is left; the job goes on without it";
  // The first host may still send a start for a replacement.
  actions.stay = over_.empty() && unanswered_ > 0;
  return actions;
}

void Follower::read(const std::string& text, Actions& actions) {
  std::istringstream words(text);
  std::string what;
  words >> what;
  int number = 0;
  if (what == "known") known_ = true;
  if (what == "gone") --unanswered_;
  if (what == "start" && words >> number) {
    --unanswered_;
    actions.start.push_back(number);
  }
  if (what == "kill" && words >> number) actions.kill.push_back(number - number_of(0));
  if (what == "finished") {
    finished_ = true;
    for (char comma = 0; words >> number; words >> comma) members_.insert(number);
  }
  if (what == "over" && over_.empty()) {
    words >> exit_code_ >> std::ws;
    over_.assign(std::istreambuf_iterator<char>(words), {});
  }
}

}  // namespace brigade::launching
