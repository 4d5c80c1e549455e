// Addresses and sockets for the rendezvous. LibTorch's store does not control on which
// interface it listens, how long it tries, and which error it gives; this does.
#pragma once
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace brigade::group {

using Deadline = std::chrono::steady_clock::time_point;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool loopback() const;
  std::string host() const;  // "10.0.0.1", "::1"
  int port() const;
};

// The address that a socket is bound to.
Address own_address(int socket);

// "host:port", with brackets around an IPv6 address.
std::string endpoint(const std::string& host, int port);

// All addresses of a host name, the preferred one first. Throws a RendezvousError that
// names the host.
std::vector<Address> resolve(const std::string& host, int port);

// Returns a socket that listens on the first possible address, or on all interfaces. Port 0
// means a free one. The caller owns the socket. Throws RendezvousError: port in use, not an
// address of this host. REQUIRES: there is an address.
int listen_on(std::span<const Address> addresses);
int listen_on_all(int port);

// The first of a host's addresses that answers; none if no address does, or the name is
// unknown; `why`, if given, then gets the reason.
std::optional<Address> try_reach(const std::string& host, int port, Deadline deadline,
                                 std::string* why = nullptr);

// Retries until an address answers, and returns it. Throws RendezvousError with the last
// cause at the deadline.
Address reach(const std::string& host, int port, Deadline deadline);

// The address at which other hosts can reach this one: the source address of packets to
// `peer`; if that is loopback or `peer` is empty, that of the default route, else of the
// first interface that is up, else loopback. Sends nothing.
std::string outward_address(const std::string& peer);

// Equal for two processes exactly if they can connect over loopback.
std::string host_identity();

// The sockets of this process, as the kernel lists them.

std::vector<int> open_descriptors();

// Throws Error if this process can't open `count` more descriptors, which `whom` needs:
// libraries that fail to open one on their own thread abort, or wait for ever.
void check_descriptors(size_t count, const std::string& whom);

// One end of a connected TCP socket, "127.0.0.1:4711": `name` is getpeername or
// getsockname. Empty if it is not a socket, or has no such end.
std::string end_of(int socket, int (*name)(int, sockaddr*, socklen_t*));

// This process's end of each connection, by inode, because descriptors' numbers are reused
// at once.
std::map<ino_t, std::string> connections();

}  // namespace brigade::group
