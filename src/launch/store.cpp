#include "launch/store.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "brigade/error.h"
#include "group/network.h"
#include "group/tcp_store.h"

namespace brigade::launching {
namespace {

std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

std::string advice(int error) {
  if (error == EADDRINUSE) return " (another job? choose another --master-port)";
  if (error == EADDRNOTAVAIL) {
    return " (node rank 0 must run on the host that the master address names)";
  }
  return "";
}

}  // namespace

Listener::Listener(const std::string& host, std::uint16_t port) {
  int error = 0;
  for (const group::Address& address : group::resolve(host, port)) {
    const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // A port that an earlier job has just left must not count as taken.
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 && bind(fd, address.get(), address.length) == 0 && listen(fd, 1024) == 0) {
      fd_ = fd;
      port_ = port_of(fd);
      host_ = address.host();
      return;
    }
    error = errno;
    if (fd >= 0) close(fd);
  }
  throw RendezvousError("cannot listen on " + group::endpoint(host, port) + ": " +
                        std::strerror(error) + advice(error));
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

c10::intrusive_ptr<c10d::Store> Listener::serve() {
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = std::exchange(fd_, -1);
  return group::open_tcp_store(host_, options);
}

}  // namespace brigade::launching
