// Addresses and sockets for the rendezvous: what LibTorch's store leaves to chance (which
// interface it listens on, how long it tries, what it says when it fails) is decided here.
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

// All addresses of a host name, the preferred first. Throws RendezvousError that names the
// host.
std::vector<Address> resolve(const std::string& host, int port);

// A socket that listens on the first of the addresses where that is possible, or on all
// interfaces. Port 0: a free one. The caller owns it. Throws RendezvousError: port in use,
// not an address of this host. REQUIRES: there is an address.
int listen_on(std::span<const Address> addresses);
int listen_on_all(int port);

// The first of a host's addresses where somebody answers; none when nobody does, or the
// name is not known; then `why`, if given, says which.
std::optional<Address> try_reach(const std::string& host, int port, Deadline deadline,
                                 std::string* why = nullptr);

// Tries again and again until somebody answers, and gives the address that did. Throws
// RendezvousError with the last cause at the deadline.
Address reach(const std::string& host, int port, Deadline deadline);

// The address that other hosts can reach this one by: the one that a packet to `peer` would
// leave from; where that is loopback or `peer` is empty, the one of the default route, else
// of the first interface that is up. Sends nothing. Loopback when there is no other.
std::string outward_address(const std::string& peer);

// Equal for two processes exactly when they can talk over loopback.
std::string host_identity();

// The sockets of this process, as the kernel lists them.

std::vector<int> open_descriptors();

// Throws Error when this process can't open `count` more descriptors, which `whom` needs:
// libraries that are refused one on a thread of their own abort, or wait for ever.
void check_descriptors(size_t count, const std::string& whom);

// One end of a connected TCP socket, "127.0.0.1:4711": `name` is getpeername or
// getsockname. Empty: it is no socket, or has no such end.
std::string end_of(int socket, int (*name)(int, sockaddr*, socklen_t*));

// This process's end of each connection, by inode: a descriptor's number may be given again
// at once.
std::map<ino_t, std::string> connections();

}  // namespace brigade::group
