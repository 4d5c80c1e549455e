// Two hosts on one machine, for tests of what goes over a network. Only where
// why_no_network_namespaces() is empty.
#pragma once
#include <array>
#include <string>

#include "brigade/process_group.h"

namespace brigade::testing {

// Two network namespaces with a cable between them. At the end they are gone, and so is
// whatever still runs in them.
class NetworkCable {
 public:
  static constexpr const char* kDevice = "brw0";

  // Throws std::runtime_error.
  NetworkCable();
  ~NetworkCable();
  NetworkCable(const NetworkCable&) = delete;
  NetworkCable& operator=(const NetworkCable&) = delete;

  // From now on both ends send at most this much: "100mbit". May be called by a rank.
  void limit(const std::string& rate) const;

  // In a worker of `launch`: moves it to its host, the first one for the lower half of the
  // ranks, and makes the group of all.
  ProcessGroup join(int rank, int ranks) const;

 private:
  void remove() const;

  std::array<std::string, 2> names_;
};

}  // namespace brigade::testing
