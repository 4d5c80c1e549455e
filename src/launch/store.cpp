#include "launch/store.h"

#include <unistd.h>

#include <chrono>

#include "brigade/error.h"
#include "group/network.h"
#include "group/rendezvous.h"
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

c10::intrusive_ptr<c10d::Store> Listener::serve(const std::string& run_id) {
  group::check_descriptors_of_store();
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = release();
  group::Watchdog watchdog("the store of this launcher at " + group::endpoint(host_, port_),
                           kFirstAnswer);
  return watchdog.watch("its first call", "", [&] {
    auto store = group::open_tcp_store(host_, options);
    store->set(group::kRunIdKey, run_id);
    return store;
  });
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
