#include "launch/elastic/steward.h"

#include <algorithm>
#include <cstdio>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often messages are looked for: while something is expected, and otherwise.
constexpr milliseconds kBusy{5};
constexpr milliseconds kIdle{100};

// How long a process that lives may need to say so.
constexpr milliseconds kSilence{5000};
// What a worker is given at least: a limit for collectives may be short, and a program must
// be loaded, and its data read.
constexpr milliseconds kToBecomeReady{60'000};

}  // namespace

void Steward::serve(c10::intrusive_ptr<c10d::Store> store) {
  // As a worker's rendezvous does it: there is one attempt only.
  mail_ = std::make_unique<group::LauncherMailbox>(
      c10::make_intrusive<c10d::PrefixStore>("brigade/attempt_0", std::move(store)));
  membership_ = std::make_unique<Membership>(
      MembershipOptions{.min_workers = options_.min_workers,
                        .grace = options_.grace,
                        .silence = std::min(limit_, kSilence),
                        .limit = std::max(limit_, kToBecomeReady)},
      *mail_);
  for (const auto& [worker, local_rank] : local_ranks_)
    membership_->started(worker, steady_clock::now());
}

void Steward::started(int worker, int local_rank) {
  local_ranks_[worker] = local_rank;
  if (membership_) membership_->started(worker, steady_clock::now());
}

int Steward::to_come() const {
  return static_cast<int>(to_start_.size()) + (options_.replace ? restarts_left_ : 0);
}

bool Steward::goes_on_without(int worker, bool ended_well, const std::string& how) {
  const int local_rank = local_ranks_[worker];
  local_ranks_.erase(worker);
  if (!membership_) return ended_well;
  // Without a mistake of its own in all that it was needed for.
  if (membership_->finished()) {
    membership_->ended(worker, how, steady_clock::now());
    return ended_well;
  }
  // A program that does not call join_job() ends as it always did.
  if (!membership_->known() && !ended_well) {
    over_ = "no worker has called join_job() yet";
    return false;
  }
  membership_->ended(worker, how, steady_clock::now());
  if (ended_well) return true;
  if (options_.replace && restarts_left_ > 0) {
    --restarts_left_;
    to_start_.push_back(local_rank);
  }
  over_ = membership_->why_over(to_come());
  std::fprintf(stderr, "brigade: %s; %s\n", how.c_str(),
               !over_.empty()      ? over_.c_str()
               : to_start_.empty() ? "the others go on"
                                   : "the others go on, and a replacement is started");
  return over_.empty();
}

Steward::Wishes Steward::turn() {
  Wishes wishes;
  if (!membership_) return wishes;
  membership_->turn(steady_clock::now());
  wishes.finished = membership_->finished();
  if (wishes.finished) to_start_.clear();
  wishes.start = std::exchange(to_start_, {});
  wishes.kill = membership_->take_stuck();
  if (over_.empty() && !local_ranks_.empty()) {
    over_ = membership_->why_over(to_come() + static_cast<int>(wishes.start.size()));
    if (!over_.empty()) std::fprintf(stderr, "brigade: %s\n", over_.c_str());
  }
  return wishes;
}

milliseconds Steward::patience() const {
  return membership_ && membership_->busy() ? kBusy : kIdle;
}

}  // namespace brigade::launching
