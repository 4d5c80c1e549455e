// How the ranks find the store they meet at.
#pragma once
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "group/environment.h"

namespace brigade::group {

struct MeetingPoint {
  // Bounded in time (WatchedStore); its keys are apart from those of earlier restarts.
  c10::intrusive_ptr<c10d::Store> store;
  // The host that the store is on.
  std::string host;
};

// Connects to the store that `init_method` names; rank 0 hosts it where no launcher does.
// The store of a group on one host listens on loopback only. Throws ConfigError for a bad
// method, RendezvousError when the store cannot be hosted or reached within `timeout`.
MeetingPoint meet(const std::string& init_method, const Lookup& lookup,
                  const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace brigade::group
