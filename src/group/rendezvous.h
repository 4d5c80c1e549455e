// How the ranks find their common store.
#pragma once
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "group/environment.h"

namespace brigade::group {

struct MeetingPoint {
  // Its calls are bounded in time (TimedStore); its keys differ from those of earlier
  // restarts.
  c10::intrusive_ptr<c10d::Store> store;
  // The store's host.
  std::string host;
};

// The key under which Brigade's launcher writes its job's run id into the store that it
// hosts.
inline constexpr const char* kRunIdKey = "brigade/run_id";

// Connects to the store that `init_method` names; rank 0 hosts it if no launcher does. The
// store of a group on one host listens on loopback only. Throws ConfigError for a bad
// method, RendezvousError if the store cannot be hosted or reached within `timeout`, or is
// another job's.
MeetingPoint rendezvous(const std::string& init_method, const Lookup& lookup,
                        const Environment& environment, std::chrono::milliseconds timeout);

// LibTorch's TCP store, opened without asking the host's name server.

// `address` is numeric: "127.0.0.1", "fe80::1%eth0". See resolver_off.h.
c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options);

// Throws Error if this process has too few descriptors left to host a store.
void check_descriptors_of_store();

}  // namespace brigade::group
