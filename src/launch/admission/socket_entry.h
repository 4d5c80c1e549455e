// What the kernel knows of a TCP socket of this host: who made it, and its number.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <optional>

namespace brigade::launching {

struct SocketEntry {
  uid_t user = 0;
  // As in the link /proc/PID/fd/N of a process that holds it; never 0.
  unsigned long inode = 0;
};

// The socket whose own end is `from` and whose other end is `to`, both of one family. None:
// nobody holds such a socket on this host. Asks by netlink, and looks through the tables
// where that is of no use.
// REQUIRES: the caller holds the socket at `to`.
std::optional<SocketEntry> find_socket(const sockaddr_storage& from,
                                       const sockaddr_storage& to);

// By netlink's sock_diag: one look into the kernel's hash table. Also none where the kernel
// has no sock_diag or does not let this process ask.
std::optional<SocketEntry> find_by_diag(const sockaddr_storage& from,
                                        const sockaddr_storage& to);

// Through /proc/net/tcp and tcp6. The kernel goes through its whole table for each, which
// takes milliseconds however few connections there are.
std::optional<SocketEntry> find_in_tables(const sockaddr_storage& from,
                                          const sockaddr_storage& to);

}  // namespace brigade::launching
