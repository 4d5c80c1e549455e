#include "launch/elastic/guest_steward.h"

#include <sstream>

namespace brigade::launching {

GuestSteward::GuestSteward(GuestLink& link) : link_(link), guest_(link.entry()->guest) {}

void GuestSteward::started(int worker, int local_rank) {
  ++living_;
  link_.say("started " + std::to_string(first_number() + worker) + " " +
            std::to_string(local_rank));
}

bool GuestSteward::goes_on_without(int worker, bool ended_well, const base::Cause& how) {
  --living_;
  ++unanswered_;
  link_.say("ended " + std::to_string(first_number() + worker) +
            (ended_well ? " 1 " : " 0 ") + base::to_json(how));
  if (finished_) return ended_well || !is_member(worker);
  return known_ || ended_well;
}

Steward::Wishes GuestSteward::turn() {
  Wishes wishes;
  for (const std::string& text : link_.hear()) read(text, wishes);
  wishes.finished = finished_;
  if (finished_) wishes.start.clear();
  if (over_.empty() && !finished_) over_ = link_.lost();
  if (over_.empty() && !finished_ && living_ == 0 && unanswered_ == 0 &&
      wishes.start.empty())
    over_ = "no worker of this host is left; the job goes on without it";
  return wishes;
}

void GuestSteward::read(const std::string& text, Wishes& wishes) {
  std::istringstream words(text);
  std::string what;
  words >> what;
  int number = 0;
  if (what == "known") known_ = true;
  if (what == "gone") --unanswered_;
  if (what == "start" && words >> number) {
    --unanswered_;
    wishes.start.push_back(number);
  }
  if (what == "kill" && words >> number) wishes.kill.push_back(number - first_number());
  if (what == "finished") {
    finished_ = true;
    for (char comma = 0; words >> number; words >> comma) members_.insert(number);
  }
  if (what == "over" && over_.empty()) {
    words >> exit_code_ >> std::ws;
    over_.assign(std::istreambuf_iterator<char>(words), {});
  }
}

bool GuestSteward::is_member(int worker) const {
  return members_.contains(first_number() + worker);
}

// The first host may still want a replacement.
bool GuestSteward::must_stay() const {
  return !finished_ && over_.empty() && unanswered_ > 0;
}

// What comes from the first host wakes the loop.
std::chrono::milliseconds GuestSteward::patience() const {
  return std::chrono::milliseconds(100);
}

}  // namespace brigade::launching
