#include "launch/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "brigade/error.h"
#include "group/network.h"
#include "group/tcp_store.h"
#include "group/watchdog.h"

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

// A store's own, and those of its first clients. With fewer it would wait for ever for a
// connection that it cannot accept.
constexpr size_t kDescriptors = 16;
// How long it may take until it answers its first call.
constexpr std::chrono::milliseconds kFirstAnswer{10'000};

void check_descriptors(int any) {
  std::vector<int> copies;
  while (copies.size() < kDescriptors) {
    const int copy = fcntl(any, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) break;
    copies.push_back(copy);
  }
  for (const int copy : copies) close(copy);
  if (copies.size() == kDescriptors) return;
  throw Error("too few file descriptors are left for the store of this job: " +
              std::to_string(copies.size()) + " of the " + std::to_string(kDescriptors) +
              " that it needs; raise the limit (ulimit -n)");
}

}  // namespace

c10::intrusive_ptr<c10d::Store> Listener::serve() {
  check_descriptors(fd_);
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = std::exchange(fd_, -1);
  group::Watchdog watchdog("the store of this launcher at " + group::endpoint(host_, port_),
                           kFirstAnswer);
  return watchdog.watch("its first call", "",
                        [&] { return group::open_tcp_store(host_, options); });
}

}  // namespace brigade::launching
