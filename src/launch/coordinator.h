// Decides for the whole elastic job, on the host that has the store.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "brigade/launch.h"
#include "launch/host_link.h"
#include "launch/job_control.h"
#include "launch/membership.h"

namespace c10d {
class Store;
}

namespace brigade::launching {

// A worker's number and its index among this host's workers are the same here.
class Coordinator : public JobControl {
 public:
  // `limit`: how long a worker may take to become ready, if that is over a minute, and how
  // long another host may be silent.
  Coordinator(const LaunchOptions& options, std::chrono::milliseconds limit);

  // Uses the store of the workers. REQUIRES: called once.
  void serve(c10::intrusive_ptr<c10d::Store> store);
  // Lets other hosts in. `workers`: their number on this host. REQUIRES: called after
  // serve().
  void open_to_followers(const c10::intrusive_ptr<c10d::Store>& store, int workers,
                         const std::string& run_id);
  // Informs all followers that the job is over, and gives them `limit` to leave.
  void dismiss_followers(const std::string& text, int exit_code,
                         std::chrono::milliseconds limit);

  std::optional<int> first_number() const override { return 0; }
  void started(int worker, int local_rank) override;
  bool goes_on_without(int worker, bool ended_well, const base::Cause& how) override;
  Actions poll() override;
  std::string over() const override { return over_; }

 private:
  using Time = Membership::Time;
  struct FollowerState {
    std::string name;
    int to_start = 0;  // starts that it was sent and has not reported yet
    bool told_known = false;
    std::set<int> told_to_kill;
  };

  int to_come() const;
  int hosts() const { return 1 + static_cast<int>(followers_.size()); }
  std::string why_over(Time now);
  void replace(int worker, int local_rank);
  void hear_followers(Time now);
  void read(int follower, const std::string& text, Time now);
  void welcome(int follower, const std::string& name, int workers);
  void lose_silent_followers(Time now);
  void lose(int follower, const std::string& how, Time now);
  void tell_followers();
  void kill(const std::vector<int>& stuck, Actions& actions);
  std::vector<int> late_workers() const;

  const ElasticLaunch options_;
  const int max_hosts_;
  const std::string given_run_id_;
  const std::chrono::milliseconds limit_;
  int restarts_left_;
  std::unique_ptr<group::LauncherMailbox> mail_;
  std::unique_ptr<Membership> membership_;
  std::map<int, int> local_ranks_;  // of all living workers, by their number
  std::vector<int> to_start_;       // local ranks of this host
  std::string over_;
  // Null if the job has one host.
  std::unique_ptr<HostMessages> messages_;
  std::map<int, FollowerState> followers_;
  std::optional<Time> short_since_;  // when hosts or workers became too few
  bool told_finished_ = false;
};

}  // namespace brigade::launching
