#include "launch/store.h"

#include <unistd.h>

#include <chrono>

#include "group/network.h"
#include "group/store/tcp_store.h"
#include "group/store/watchdog.h"

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

namespace {

// How long it may take until it answers its first call.
constexpr std::chrono::milliseconds kFirstAnswer{10'000};

}  // namespace

c10::intrusive_ptr<c10d::Store> Listener::serve() {
  group::check_descriptors_of_store();
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = release();
  group::Watchdog watchdog("the store of this launcher at " + group::endpoint(host_, port_),
                           kFirstAnswer);
  return watchdog.watch("its first call", "",
                        [&] { return group::open_tcp_store(host_, options); });
}

}  // namespace brigade::launching
