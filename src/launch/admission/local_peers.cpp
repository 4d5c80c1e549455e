#include "launch/admission/local_peers.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "base/files/read_whole.h"
#include "launch/workers/worker_family.h"

namespace brigade::launching {
namespace {

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

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

struct SocketEntry {
  uid_t user = 0;
  unsigned long inode = 0;
};

// The line of /proc/net/tcp that has both ends; none: there is none, or nobody's.
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

// The socket whose own end is `from` and whose other end is `to`.
std::optional<SocketEntry> find_socket(const End& from, const End& to) {
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::string table = base::read_whole(path);
    for (const auto& ends : {from.own + " " + to.own, from.mapped + " " + to.mapped}) {
      if (const auto entry = entry_in(table, " " + ends + " ")) return entry;
    }
  }
  return std::nullopt;
}

std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> found;
  const Folder folder(opendir("/proc"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = base::read_whole("/proc/" + name + "/stat");
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream fields(text.substr(name_end + 1));
    char state = '?';
    pid_t parent = 0;
    fields >> state >> parent;
    found[static_cast<pid_t>(std::stol(name))] = parent;
  }
  return found;
}

bool descends(pid_t pid, pid_t ancestor, const std::map<pid_t, pid_t>& parent_of) {
  // Bounded: the table is not of one moment, so that it could have a circle.
  for (size_t step = 0; step <= parent_of.size(); ++step) {
    if (pid == ancestor) return true;
    const auto parent = parent_of.find(pid);
    if (parent == parent_of.end()) return false;
    pid = parent->second;
  }
  return false;
}

// Others could read the mark somewhere, and put it into their own environment.
bool is_marked_and_ours(pid_t pid, const std::string& mark) {
  struct stat owner {};
  return stat(("/proc/" + std::to_string(pid)).c_str(), &owner) == 0 &&
         owner.st_uid == geteuid() && carries_mark(pid, mark);
}

}  // namespace

void LocalPeers::look_for_members() {
  members_.clear();
  const auto parent_of = parents();
  for (const auto& [pid, parent] : parent_of) {
    if (descends(pid, getpid(), parent_of) || is_marked_and_ours(pid, mark_)) {
      members_.push_back(pid);
    }
  }
}

void LocalPeers::look_for_sockets() {
  inodes_.clear();
  unseen_.clear();
  for (pid_t pid : members_) {
    const std::string path = "/proc/" + std::to_string(pid);
    const Folder folder(opendir((path + "/fd").c_str()), closedir);
    struct stat owner {};
    if (!folder && errno == EACCES && stat(path.c_str(), &owner) == 0) {
      // A process that may not be looked into seems to be root's.
      unseen_.insert({owner.st_uid, geteuid()});
    }
    while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
      char target[64];
      const ssize_t length =
          readlinkat(dirfd(folder.get()), entry->d_name, target, sizeof target - 1);
      if (length <= 0) continue;
      target[length] = '\0';
      unsigned long inode = 0;
      if (std::sscanf(target, "socket:[%lu]", &inode) == 1) inodes_.insert(inode);
    }
  }
}

LocalPeers::Answer LocalPeers::ask(int connection) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t length = sizeof here;
  if (getsockname(connection, reinterpret_cast<sockaddr*>(&here), &length) != 0) {
    return {.gone = true};
  }
  length = sizeof there;
  if (getpeername(connection, reinterpret_cast<sockaddr*>(&there), &length) != 0) {
    return {.gone = true};
  }
  const auto socket = find_socket(end_of(there), end_of(here));
  if (!socket) return {.gone = true};
  const auto known = [&] {
    return inodes_.contains(socket->inode) || unseen_.contains(socket->user);
  };
  // Looks at more only where that is needed: many workers come at once.
  if (!inodes_.contains(socket->inode)) look_for_sockets();
  if (!known()) look_for_members(), look_for_sockets();
  if (known()) return {.member = true, .user = socket->user};
  // A peer that merely looked whether somebody is here has closed it meanwhile.
  return {.gone = !find_socket(end_of(there), end_of(here)), .user = socket->user};
}

}  // namespace brigade::launching
