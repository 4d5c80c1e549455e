#include "group/rendezvous.h"

#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "group/network.h"
#include "group/store/resolver_off.h"
#include "group/store/timed_store.h"

namespace brigade::group {
namespace {

std::shared_ptr<Watchdog> watchdog_for(const std::string& address, int rank,
                                       std::chrono::milliseconds timeout) {
  return std::make_shared<Watchdog>(
      "rank " + std::to_string(rank) + ": the store at " + address, timeout);
}

Master parse_tcp(const std::string& method) {
  std::string rest = method.substr(6);
  auto colon = rest.rfind(':');
  auto expected = [&] {
    return ConfigError("init_method='" + method +
                       "': expected tcp://HOST:PORT with a port from 1 to 65535");
  };
  if (colon == std::string::npos || colon == 0) throw expected();
  std::string host = rest.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  try {
    return {host, parse_int("port", rest.substr(colon + 1), 1, 65535)};
  } catch (const ConfigError&) {
    throw expected();
  }
}

// Rank 0 listens on loopback if all ranks are on this host, else on the address that the
// others were given. In a job of several hosts, a name that means loopback here (Debian
// gives a host's own name 127.0.1.1) does not tell which address they use: it listens on
// all.
int listen_for(const Address& address, const Master& master,
               const Environment& environment) {
  const bool several_hosts = environment.local_world_size &&
                             *environment.local_world_size < environment.world_size;
  return address.loopback() && several_hosts ? listen_on_all(master.port)
                                             : listen_on({&address, 1});
}

c10::intrusive_ptr<c10d::Store> open_tcp(const Master& master,
                                         const Environment& environment, bool host_it,
                                         Deadline deadline,
                                         std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(master.port);
  options.isServer = host_it;
  options.waitWorkers = false;
  // LibTorch retries a server that answers wrongly, and exceeds its limit. The server has
  // been reached already, so half the time is enough, and the error is still LibTorch's.
  options.timeout = std::max(timeout / 2, std::chrono::milliseconds(1));
  const Address there = host_it ? resolve(master.host, master.port).front()
                                : reach(master.host, master.port, deadline);
  // LibTorch's own server would listen on every interface.
  if (host_it) {
    check_descriptors_of_store();
    options.masterListenFd = listen_for(there, master, environment);
  }
  try {
    auto store = open_tcp_store(there.host(), options);
    store->setTimeout(timeout);
    return store;
  } catch (const std::exception& error) {
    throw RendezvousError("the store at " + endpoint(master.host, master.port) +
                          " does not work: " + base::cause_of(error) +
                          "; does something else listen there?");
  }
}

// The stores that this process hosts, by address, as long as it lives: a peer that connects
// for a second group finds the same store, not one that is about to close. Prefixes
// separate their keys.
c10::intrusive_ptr<c10d::Store>& hosted_store(const std::string& address) {
  static std::mutex mutex;
  // Not destroyed: LibTorch's own statics may be gone by then.
  static auto* stores = new std::map<std::string, c10::intrusive_ptr<c10d::Store>>;
  std::lock_guard lock(mutex);
  return (*stores)[address];
}

// A worker that reaches the store of another job, whose launcher has the same port, must
// not take a rank there. Other launchers write no run id: then this neither compares nor
// waits.
void check_job(c10d::Store& store, const std::string& address, const Lookup& lookup) {
  if (!store.check({kRunIdKey})) return;
  const std::string there = store.get_to_str(kRunIdKey);
  const auto here = lookup("TORCHELASTIC_RUN_ID");
  if (here == there) return;
  throw RendezvousError(
      "the store at " + address + " is that of the job '" + there +
      "', and this process is of " +
      (here ? "the job '" + *here + "'" : std::string("none (no TORCHELASTIC_RUN_ID)")) +
      "; give each job a master port of its own");
}

MeetingPoint meet_over_tcp(Master master, const Lookup& lookup,
                           const Environment& environment,
                           std::chrono::milliseconds timeout) {
  const bool host_it = environment.rank == 0 && !environment.agent_store;
  // On one host, loopback is used, whatever name the host was given.
  if (environment.single_host() && !environment.agent_store) master.host = "127.0.0.1";
  const std::string address = endpoint(master.host, master.port);
  c10::intrusive_ptr<c10d::Store> own;
  auto& store = host_it ? hosted_store(address) : own;
  if (!store) {
    auto watchdog = watchdog_for(address, environment.rank, timeout);
    const Deadline deadline = std::chrono::steady_clock::now() + timeout;
    auto opened = watchdog->watch("connect", std::string(), [&] {
      return open_tcp(master, environment, host_it, deadline, timeout);
    });
    store = c10::make_intrusive<TimedStore>(std::move(opened), std::move(watchdog));
    if (!host_it) check_job(*store, address, lookup);
  }
  return {store, master.host};
}

MeetingPoint meet_unprefixed(const std::string& method, const Lookup& lookup,
                             const Environment& environment,
                             std::chrono::milliseconds timeout) {
  if (method.empty() || method == "env://") {
    return meet_over_tcp(read_master(lookup, environment), lookup, environment, timeout);
  }
  if (method.rfind("tcp://", 0) == 0) {
    // A launcher's store is only at the variables' address.
    Environment own = environment;
    own.agent_store = false;
    return meet_over_tcp(parse_tcp(method), lookup, own, timeout);
  }
  const bool in_folder = method.rfind("file:", 0) == 0;
  throw ConfigError("init_method='" + method + "': expected env:// or tcp://HOST:PORT" +
                    (in_folder ? "; ranks do not meet in a folder: give all of them "
                                 "tcp://HOST:PORT with rank 0's host and a free port there"
                               : ""));
}

}  // namespace

MeetingPoint rendezvous(const std::string& init_method, const Lookup& lookup,
                        const Environment& environment, std::chrono::milliseconds timeout) {
  MeetingPoint point = meet_unprefixed(init_method, lookup, environment, timeout);
  point.store = c10::make_intrusive<c10d::PrefixStore>(
      "brigade/attempt_" + std::to_string(environment.restart_count), point.store);
  return point;
}

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options) {
  const ResolverAnswersNo off;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

void check_descriptors_of_store() {
  // The store's own descriptors, and those of its first clients.
  check_descriptors(16, "the store of this job");
}

}  // namespace brigade::group
