// Decides who belongs to an elastic job, generation after generation.
//
// Vocabulary, besides that of group/store/mailbox.h. A *member* has an assignment in the
// present generation; a *newcomer* has none yet. A member *holds the state* once it has
// formed a generation. Between two generations the launcher *regroups*: it notifies the
// members that theirs is over, waits until the living are ready, and assigns.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"
#include "group/store/mailbox.h"

namespace brigade::launching {

struct MembershipOptions {
  // With fewer workers no generation begins; newcomers may take up to `limit`.
  int min_workers = 1;
  // How long a generation that could begin waits for newcomers that were already started.
  std::chrono::milliseconds grace{0};
  // How long a process may be silent after it was notified that its generation is over.
  std::chrono::milliseconds silence{5000};
  // How long a worker may take to become ready.
  std::chrono::milliseconds limit{300'000};
};

// Decides, but does not start or end anything itself. Never waits. Not thread-safe.
class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;
  Membership(const MembershipOptions& options, group::LauncherMailbox& mail)
      : options_(options), mail_(mail) {}

  void started(int worker, Time now);
  // `how`: "rank 2 ended by SIGKILL", and the kind of failure.
  void ended(int worker, const base::Cause& how, Time now);
  // While it is held, no generation begins, because hosts are missing.
  void hold(bool held) { held_ = held; }
  // Whether a member was notified that its generation is over and has not answered.
  bool waits_for(int worker) const;
  // Reads and writes messages. To be called often.
  void turn(Time now);

  // Returns workers that do not answer any more and must be killed.
  std::vector<int> take_stuck();
  // Whether all members have come to the end of their training.
  bool finished() const { return finished_; }
  // Returns why no worker that is left can go on; empty: one can. `to_come`: how many
  // workers may still be started.
  std::string why_over(int to_come) const;
  bool is_member(int worker) const;
  // Whether a worker has ever been ready, so that the program is known to be elastic.
  bool known() const { return known_; }
  // Whether a message is expected within moments.
  bool busy() const;
  int generation() const { return generation_; }

 private:
  struct Worker {
    bool member = false;
    bool holds_state = false;
    bool ready = false;
    bool done = false;
    bool heard = false;
    bool unresponsive = false;
    Time since;  // when it started, or was assigned
  };

  void read_mail(Time now);
  void read(int worker, const std::string& text, Time now);
  void gather(const std::string& why, bool abort, Time now);
  void tell_that_it_is_over(Time now);
  void condemn_silent(Time now);
  bool is_last_with_state(const Worker& worker) const;
  bool all_are_here(Time now) const;
  void publish(Time now);
  void finish();

  const MembershipOptions options_;
  group::LauncherMailbox& mail_;
  std::map<int, Worker> workers_;  // the living ones
  int generation_ = -1;
  bool formed_ = false;  // whether any generation ever was
  bool known_ = false;
  bool finished_ = false;
  bool held_ = false;
  bool wanted_ = false;                         // members were notified of a newcomer
  std::optional<Time> gathering_{Time::min()};  // since when; none: a generation trains
  std::optional<Time> told_;                    // when members were notified
  std::string why_;
};

}  // namespace brigade::launching
