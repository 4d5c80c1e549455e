// The store through which the workers of a job find each other, hosted by the launcher.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <utility>

namespace c10d {
class Store;
}

namespace brigade::launching {

// A bound, listening socket. Made before the workers start, so that nobody else can take
// the port, and none of them comes too early.
class Listener {
 public:
  // Port 0: a free one. Listens on the address that `host` names and on no other.
  // Throws RendezvousError that names host, port and reason.
  Listener(const std::string& host, std::uint16_t port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  // Gives the socket away.
  int release() { return std::exchange(fd_, -1); }
  std::uint16_t port() const { return port_; }
  const std::string& host() const { return host_; }
  // Serves; takes the socket over. Starts threads, which end with the last reference.
  // Throws Error when this process has too few descriptors left for a store; where the
  // store does not answer for another reason, the process ends with a report.
  c10::intrusive_ptr<c10d::Store> serve();

 private:
  int fd_;
  std::string host_;
  std::uint16_t port_;
};

}  // namespace brigade::launching
