// Messages between the launchers of an elastic job on several hosts, through the store.
//
// Vocabulary. The *first host's* launcher has the store and decides. A *follower* is the
// launcher of another host; it gets a number from 1 on, never twice. A follower sends:
//   hello COUNT NAME     it joins with COUNT workers, from the host of that name
//   started N LOCAL      worker N runs, under that local rank
//   ended N WELL HOW     worker N has ended; WELL is 1 for exit code 0
//   beat                 it lives
//   bye                  it leaves, and needs the store no more
// The first host sends:
//   known                the workers know elastic jobs, so a death is survived from now on
//   start LOCAL          start another worker; an answer to `ended`
//   gone                 no other is started; an answer to `ended`
//   kill N               worker N does not answer any more
//   finished N,N         all training is done; these are the follower's members
//   over CODE TEXT       the job, or this follower's part in it, is over
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group/store/mailbox.h"
#include "launch/nodes.h"

namespace brigade::launching {

// The workers of follower H have numbers from H * kNumbersAHost on.
constexpr int kNumbersAHost = 100'000;
constexpr int host_of(int number) { return number / kNumbersAHost; }

// The first host's side. It never waits long. Not thread-safe.
class HostMessages {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // From now on followers may come. `ranks`: the number of the first host's own workers.
  // `given_run_id`: as the user gave it; empty: this launcher made one up.
  HostMessages(c10::intrusive_ptr<c10d::Store> store, int ranks, const std::string& run_id,
               const std::string& given_run_id = "");

  // Returns the messages since the last call, except beats.
  std::vector<std::pair<int, std::string>> hear(Time now);
  void say(int follower, const std::string& text) { mail_.send(follower, text); }
  // Returns how long nothing has been heard of the follower.
  std::chrono::milliseconds silence(int follower, Time now) const;
  // Stops listening to a follower that has left or is lost.
  void forget(int follower);

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  group::LauncherMailbox mail_;
  std::map<int, Time> heard_;  // by follower
  int known_ = 0;              // followers that ever came
};

// A follower's side. A thread of its own talks to the store, so all calls return at once.
class HostLink {
 public:
  struct Self {
    std::string host;
    int workers = 0;
    // As the user gave it; empty: any job's will do.
    std::string given_run_id = {};
  };
  // The entry that the first host has of the follower.
  struct Entry {
    int follower = 0;
    int first_rank = 0;
    std::string run_id;
  };
  // `address`: the first host's, for texts. `limit`: how long it may be silent.
  HostLink(Self self, std::string address, StoreOpener opener,
           std::chrono::milliseconds limit);
  // Sends `bye`; waits for at most 2 s.
  ~HostLink();
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  // Becomes readable when there is news; hear() resets it.
  int fd() const;
  // Returns none until the first host was reached.
  std::optional<Entry> entry() const;
  void say(std::string text);
  std::vector<std::string> hear();
  // Why the first host is out of reach; empty: it is not.
  std::string lost() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace brigade::launching
