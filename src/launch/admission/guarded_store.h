// A store that only this process's own connections reach.
#pragma once
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "launch/store.h"

namespace brigade::launching {

// LibTorch's store lets everybody in who reaches its port. This one listens on loopback,
// and the kernel drops what comes to that port from other source ports than those that
// connections of this object hold. Nobody else can have these meanwhile: who else may come
// in, comes through the Forwarder. Thread-safe.
class GuardedStore {
 public:
  // Listens on a free port. Throws RendezvousError.
  GuardedStore();
  ~GuardedStore();
  GuardedStore(const GuardedStore&) = delete;
  GuardedStore& operator=(const GuardedStore&) = delete;

  // Serves, and is closed to others from then on. Starts threads, which end with the last
  // reference.
  c10::intrusive_ptr<c10d::Store> serve(const std::string& run_id);
  // A connection to the store, perhaps still under way, not blocking; -1 and errno when
  // there is none. REQUIRES: it is closed by `disconnect` and nothing else.
  int connect();
  void disconnect(int connection);
  // For workers to close.
  std::vector<int> fds() const { return {listener_.fd(), socket_}; }

 private:
  void hear_only_own_ports();  // under mutex_

  Listener listener_;
  // The listening socket once more: the store takes the listener over.
  const int socket_;
  std::mutex mutex_;
  bool served_ = false;
  // Of the latest connections that have not been closed. A connection keeps the filter
  // under which it was accepted, so that older ones need no mention.
  std::deque<std::uint16_t> ports_;
};

}  // namespace brigade::launching
