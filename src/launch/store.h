// The store through which the workers of a job find each other, hosted by the launcher.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
}

namespace brigade::launching {

// A bound, listening socket. It is made before the workers start, so that nobody else can
// take the port, and no worker comes too early.
class Listener {
 public:
  // Port 0: a free one. Listens only on the address that `host` names. Throws
  // RendezvousError that names host, port and reason.
  Listener(const std::string& host, std::uint16_t port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  std::uint16_t port() const { return port_; }
  // Serves the job of that run id, which its workers find in the store; takes the socket
  // over. Starts threads, which end with the last reference. Throws Error if this process
  // has too few descriptors left for a store. If the store does not answer for another
  // reason, the process ends with a report.
  c10::intrusive_ptr<c10d::Store> serve(const std::string& run_id);

 private:
  int fd_;
  std::string host_;
  std::uint16_t port_;
};

// Connects to the store of the launcher at that address; `limit` is for its calls. Returns
// null, and sets `why`, if nobody listens there yet.
c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, std::uint16_t port,
                                           std::chrono::milliseconds limit,
                                           std::string& why);

// Refuses two jobs that use one address. `there` and `here` are the run ids that the user
// gave node 0's launcher and this one. An empty one was made up by the launcher, and is not
// compared. Throws RendezvousError that names both.
void check_run_ids(const std::string& address, const std::string& there,
                   const std::string& here);

}  // namespace brigade::launching
