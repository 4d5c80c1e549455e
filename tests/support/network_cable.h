// Two hosts on one machine, for tests that use a network. Needs why_no_network_namespaces()
// to be empty.
#pragma once
#include <array>
#include <string>

#include "brigade/process_group.h"

namespace brigade::testing {

// Two network namespaces with a cable between them. The destructor removes them and ends
// all processes in them.
class NetworkCable {
 public:
  static constexpr const char* kDevice = "brw0";

  // Throws std::runtime_error.
  NetworkCable();
  ~NetworkCable();
  NetworkCable(const NetworkCable&) = delete;
  NetworkCable& operator=(const NetworkCable&) = delete;

  // Limits both ends from now on to so much: "100mbit". A rank may call it.
  void limit(const std::string& rate) const;

  // In a worker of `launch`: moves it to its host (the first one for the lower half of the
  // ranks) and makes the group of all.
  ProcessGroup join(int rank, int ranks) const;

 private:
  void remove() const;

  std::array<std::string, 2> names_;
};

}  // namespace brigade::testing
