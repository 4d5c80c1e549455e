// Who belongs to an elastic job, generation after generation.
//
// Vocabulary, besides that of group/store/mailbox.h. A *member* has a place in the present
// generation; a *newcomer* has none yet. A member *holds the state* once it has formed a
// generation. Between two generations the launcher *gathers*: it tells the members that
// theirs is over, waits until all that live are ready, and gives out places.
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
  // Fewer do not train: newcomers are waited for, `limit` at most.
  int min_workers = 1;
  // How long a generation that could begin waits for newcomers that were started already.
  std::chrono::milliseconds grace{0};
  // How long a process may be silent when it is told that its generation is over.
  std::chrono::milliseconds silence{5000};
  // How long a worker may take to become ready.
  std::chrono::milliseconds limit{300'000};
};

// Decides; starts and ends nothing itself. Never waits. Not thread-safe.
class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;
  Membership(const MembershipOptions& options, group::LauncherMailbox& mail)
      : options_(options), mail_(mail) {}

  void started(int worker, Time now);
  // `how`: "rank 2 ended by SIGKILL", and what kind of failure that was.
  void ended(int worker, const base::Cause& how, Time now);
  // While it is held, no generation begins: hosts are missing.
  void hold(bool held) { held_ = held; }
  // Whether a member was told that its generation is over and has not answered.
  bool waits_for(int worker) const;
  // Reads and writes messages. To be called often.
  void turn(Time now);

  // Workers that do not answer any more and must be killed.
  std::vector<int> take_stuck();
  // All members have come to the end of their training.
  bool finished() const { return finished_; }
  // Whether nobody who is left can go on; empty: somebody can. `to_come`: how many workers
  // may still be started.
  std::string why_over(int to_come) const;
  bool is_member(int worker) const;
  // A worker has ever been ready: the program knows elastic jobs.
  bool known() const { return known_; }
  // Something is expected within moments.
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
    Time since;  // it was started, or its generation was given out
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
  std::map<int, Worker> workers_;  // the living
  int generation_ = -1;
  bool formed_ = false;  // any generation, ever
  bool known_ = false;
  bool finished_ = false;
  bool held_ = false;
  bool wanted_ = false;                         // members were told that somebody waits
  std::optional<Time> gathering_{Time::min()};  // since when; none: a generation trains
  std::optional<Time> told_;                    // when members were told that it is over
  std::string why_;
};

}  // namespace brigade::launching
