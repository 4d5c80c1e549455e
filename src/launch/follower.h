// The launcher of a host that has joined an elastic job; it obeys the first host.
#pragma once
#include <set>

#include "launch/host_link.h"
#include "launch/job_control.h"

namespace brigade::launching {

class Follower : public JobControl {
 public:
  // REQUIRES: `link` has its entry, and outlives this.
  explicit Follower(HostLink& link);

  std::optional<int> first_number() const override { return number_of(0); }
  void started(int worker, int local_rank) override;
  bool goes_on_without(int worker, bool ended_well, const base::Cause& how) override;
  int fd() const override { return link_.fd(); }
  Actions poll() override;
  std::string over() const override { return over_; }
  // The exit code of this launcher when the job is over.
  int exit_code() const { return exit_code_; }

 private:
  int number_of(int worker) const { return follower_ * kNumbersAHost + worker; }
  bool is_member(int worker) const { return members_.contains(number_of(worker)); }
  void read(const std::string& text, Actions& actions);

  HostLink& link_;
  const int follower_;
  std::set<int> living_;
  int unanswered_ = 0;  // reported ends without an answer
  bool known_ = false;
  bool finished_ = false;
  std::set<int> members_;  // by number, known once it is finished
  std::string over_;
  int exit_code_ = 1;
};

}  // namespace brigade::launching
