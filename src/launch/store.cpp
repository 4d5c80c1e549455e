#include "launch/store.h"

#include <unistd.h>

#include <utility>

#include "group/network.h"
#include "group/tcp_store.h"

namespace brigade::launching {

Listener::Listener(const std::string& host, std::uint16_t port)
    : fd_(group::listen_on(group::resolve(host, port))) {
  const group::Address own = group::own_address(fd_);
  host_ = own.host();
  port_ = static_cast<std::uint16_t>(own.port());
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
