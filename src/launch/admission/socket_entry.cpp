#include "launch/admission/socket_entry.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>

#include "base/files/read_whole.h"
#include "brigade/error.h"

namespace brigade::launching {
namespace {

// As /proc/net/tcp and tcp6 write an end of a connection: words as they lie in memory.
std::string in_hex(const void* words, size_t count, in_port_t port) {
  std::string text;
  char part[16];
  for (size_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, static_cast<const char*>(words) + 4 * i, 4);
    std::snprintf(part, sizeof part, "%08X", word);
    text += part;
  }
  std::snprintf(part, sizeof part, ":%04X", ntohs(port));
  return text + part;
}

struct End {
  // As a socket of the address's own family shows it, and as one of IPv6 shows IPv4.
  std::string own;
  std::string mapped;
};

End end_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    const std::string text = in_hex(&in6.sin6_addr, 4, in6.sin6_port);
    return {text, text};
  }
  const auto& in = reinterpret_cast<const sockaddr_in&>(address);
  const std::string text = in_hex(&in.sin_addr, 1, in.sin_port);
  const std::uint32_t prefix[]{0, 0, htonl(0xFFFF)};
  return {text, in_hex(prefix, 3, 0).substr(0, 24) + text};
}

// The line of a table that has both ends; none: there is none, or nobody's.
std::optional<SocketEntry> entry_in(const std::string& table, const std::string& ends) {
  const size_t place = table.find(ends);
  if (place == std::string::npos) return std::nullopt;
  std::istringstream fields(table.substr(place + ends.size(), 200));
  std::string state, queues, timer, retries, timeout;
  SocketEntry entry;
  fields >> state >> queues >> timer >> retries >> entry.user >> timeout >> entry.inode;
  if (!fields || !entry.inode) return std::nullopt;
  return entry;
}

void put_end(const sockaddr_storage& end, __be32 (&address)[4], __be16& port) {
  if (end.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(end);
    std::memcpy(address, &in6.sin6_addr, sizeof in6.sin6_addr);
    port = in6.sin6_port;
  } else {
    const auto& in = reinterpret_cast<const sockaddr_in&>(end);
    std::memcpy(address, &in.sin_addr, sizeof in.sin_addr);
    port = in.sin_port;
  }
}

struct Request {
  nlmsghdr header{};
  inet_diag_req_v2 body{};
};

Request request_for(const sockaddr_storage& from, const sockaddr_storage& to) {
  Request request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  // Looked for by IPv4, a connection is found where its socket is of IPv6, too.
  request.body.sdiag_family = static_cast<__u8>(from.ss_family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0u;
  // What is between two ends of one host goes through lo, the first device of every
  // network namespace. Named, a socket that is bound to it is found, too.
  request.body.id.idiag_if = 1;
  put_end(from, request.body.id.idiag_src, request.body.id.idiag_sport);
  put_end(to, request.body.id.idiag_dst, request.body.id.idiag_dport);
  std::ranges::fill(request.body.id.idiag_cookie, INET_DIAG_NOCOOKIE);
  return request;
}

// The length of the answer, or less than 1.
ssize_t ask_kernel(const Request& request, void* answer, size_t room) {
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0 && (errno == EMFILE || errno == ENFILE))
    throw Error("the launcher has no descriptor left to see who connects (see ulimit -n)");
  if (netlink < 0) return -1;
  // The kernel answers before send() returns; a sandbox that swallows the question may not.
  const timeval limit{.tv_sec = 1, .tv_usec = 0};
  setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ssize_t length = send(netlink, &request, sizeof request, 0);
  if (length > 0) length = recv(netlink, answer, room, 0);
  close(netlink);
  return length;
}

}  // namespace

std::optional<SocketEntry> find_by_diag(const sockaddr_storage& from,
                                        const sockaddr_storage& to) {
  alignas(nlmsghdr) char answer[1024];
  const ssize_t length = ask_kernel(request_for(from, to), answer, sizeof answer);
  if (length < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
    return std::nullopt;
  }
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // Where no connection fits, the kernel offers a socket that listens at that end.
  if (found->idiag_state == TCP_LISTEN || !found->idiag_inode) return std::nullopt;
  return SocketEntry{.user = found->idiag_uid, .inode = found->idiag_inode};
}

std::optional<SocketEntry> find_in_tables(const sockaddr_storage& from,
                                          const sockaddr_storage& to) {
  const End own = end_of(from), other = end_of(to);
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::string table = base::read_whole(path);
    for (const auto& ends : {own.own + " " + other.own, own.mapped + " " + other.mapped}) {
      if (const auto entry = entry_in(table, " " + ends + " ")) return entry;
    }
  }
  return std::nullopt;
}

std::optional<SocketEntry> find_socket(const sockaddr_storage& from,
                                       const sockaddr_storage& to) {
  if (const auto entry = find_by_diag(from, to)) return entry;
  // The caller holds the other end: where netlink knows that one, its "none" is true.
  if (find_by_diag(to, from)) return std::nullopt;
  return find_in_tables(from, to);
}

}  // namespace brigade::launching
