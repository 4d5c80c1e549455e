// The steward of a host that has joined an elastic job: does what the first host says.
#pragma once
#include <set>

#include "launch/elastic/hosts.h"
#include "launch/elastic/steward.h"

namespace brigade::launching {

class GuestSteward : public Steward {
 public:
  // REQUIRES: `link` has its entry, and outlives this.
  explicit GuestSteward(GuestLink& link);

  int first_number() const override { return guest_ * kNumbersAHost; }
  void started(int worker, int local_rank) override;
  bool goes_on_without(int worker, bool ended_well, const base::Cause& how) override;
  Wishes turn() override;
  const std::string& over() const override { return over_; }
  bool is_member(int worker) const override;
  bool must_stay() const override;
  std::chrono::milliseconds patience() const override;
  // What this launcher should exit with when it is over.
  int exit_code() const { return exit_code_; }

 private:
  void read(const std::string& text, Wishes& wishes);

  GuestLink& link_;
  const int guest_;
  int living_ = 0;
  int unanswered_ = 0;  // ends that were told of
  bool known_ = false;
  bool finished_ = false;
  std::set<int> members_;  // once it is finished, by number
  std::string over_;
  int exit_code_ = 1;
};

}  // namespace brigade::launching
