#include "launch/store.h"

#include <unistd.h>

#include <utility>

#include "brigade/error.h"
#include "group/network.h"
#include "group/rendezvous.h"
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

// The limit of the store's first answer.
constexpr std::chrono::milliseconds kFirstAnswer{10'000};
// The limit of one try to reach another host's store.
constexpr std::chrono::milliseconds kOneTry{2000};

}  // namespace

c10::intrusive_ptr<c10d::Store> Listener::serve(const std::string& run_id) {
  group::check_descriptors_of_store();
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = std::exchange(fd_, -1);
  group::Watchdog watchdog("the store of this launcher at " + group::endpoint(host_, port_),
                           kFirstAnswer);
  return watchdog.watch("its first call", "", [&] {
    c10::intrusive_ptr<c10d::Store> store = group::open_tcp_store(host_, options);
    store->set(group::kRunIdKey, run_id);
    return store;
  });
}

c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, std::uint16_t port,
                                           std::chrono::milliseconds limit,
                                           std::string& why) {
  // Checks first that the port is open: the store's own client would fill stderr meanwhile.
  const auto deadline = std::chrono::steady_clock::now() + kOneTry;
  const auto there = group::try_reach(host, port, deadline, &why);
  if (!there) return nullptr;
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = limit;
  return group::open_tcp_store(there->host(), options);
}

void check_run_ids(const std::string& address, const std::string& there,
                   const std::string& here) {
  if (there.empty() || here.empty() || there == here) return;
  throw RendezvousError("the launcher of node 0 at " + address + " has the run id '" +
                        there + "', and this one has '" + here +
                        "': they are of two jobs; give all launchers of a job the same "
                        "--rdzv-id, and each job a --master-port of its own");
}

}  // namespace brigade::launching
