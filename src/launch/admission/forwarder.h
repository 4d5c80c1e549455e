// Carries connections to the job's store, for those who may come in.
//
// Workers connect to their own host's launcher, over loopback: the *workers' door*. Other
// hosts' launchers connect to node 0's *launchers' door*, and prove that they know the
// job's secret. Behind a door, a connection goes on to the store itself on node 0, and to
// node 0's launchers' door elsewhere. Nobody's byte reaches the store before they are in.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "group/network.h"
#include "launch/admission/guarded_store.h"
#include "launch/admission/secret.h"

namespace brigade::launching {

// Where node 0's launchers' door is, and what opens it.
struct RemoteDoor {
  group::Address address;
  std::shared_ptr<const Secret> secret;
};

// One thread, which waits in poll() alone. Strangers are turned away with a line on stderr,
// the first of them; those who only stay silent are after 5 s, and no more than 64 at a
// time wait to be admitted.
class Forwarder {
 public:
  static constexpr std::chrono::milliseconds kProofLimit{5000};
  static constexpr std::size_t kMostUnproven = 64;

  // `mark`: the workers' (WorkerFamily). `limit`: for a connection to get from here to the
  // store.
  Forwarder(std::string mark, std::chrono::milliseconds limit);
  // Ends all connections.
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  // Both take a listening socket over. REQUIRES: before `start`.
  void open_workers_door(int listener);
  void open_launchers_door(int listener, std::shared_ptr<const Secret> secret);
  // For workers to close.
  std::vector<int> fds() const;
  void start();

  // Where connections go that come from now on; nobody gets in before. Any thread.
  // On node 0: to that attempt's store. Launchers of other hosts choose among the first
  // attempt's, which is theirs too, and the latest.
  void lead_to(int attempt, std::shared_ptr<GuardedStore> store);
  // Elsewhere: to the current attempt's, through that door.
  void lead_to(const RemoteDoor& door);
  void begin(int attempt);

  // Why it carries nothing any more; empty: it does. Any thread.
  std::string failure() const;

 private:
  class Carrier;
  std::unique_ptr<Carrier> carrier_;
  std::thread thread_;
};

}  // namespace brigade::launching
