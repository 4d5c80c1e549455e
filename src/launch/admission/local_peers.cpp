#include "launch/admission/local_peers.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "base/files/read_whole.h"
#include "brigade/error.h"
#include "launch/admission/socket_entry.h"
#include "launch/workers/worker_family.h"

namespace brigade::launching {
namespace {

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

struct Process {
  pid_t parent = 0;
  unsigned long long started = 0;  // in the kernel's own count since the boot
};

// By /proc/PID/stat; none: there is no such process.
std::optional<Process> process_of(const std::string& pid) {
  const std::string text = base::read_whole("/proc/" + pid + "/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  char state = '?';
  Process process;
  fields >> state >> process.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> process.started;
  if (!fields) return std::nullopt;
  return process;
}

std::map<pid_t, Process> processes() {
  std::map<pid_t, Process> found;
  const Folder folder(opendir("/proc"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (const auto process = process_of(name))
      found[static_cast<pid_t>(std::stol(name))] = *process;
  }
  return found;
}

bool descends(pid_t pid, pid_t ancestor, const std::map<pid_t, Process>& all) {
  // Bounded: the table is not of one moment, so that it could have a circle.
  for (size_t step = 0; step <= all.size(); ++step) {
    if (pid == ancestor) return true;
    const auto process = all.find(pid);
    if (process == all.end()) return false;
    pid = process->second.parent;
  }
  return false;
}

// Others could read the mark somewhere, and put it into their own environment.
bool is_marked_and_ours(pid_t pid, const std::string& mark) {
  struct stat owner {};
  return stat(("/proc/" + std::to_string(pid)).c_str(), &owner) == 0 &&
         owner.st_uid == geteuid() && carries_mark(pid, mark);
}

// Adds the numbers of the sockets that a process holds; or, where this process may not see
// them, whose they may be.
void look_into(pid_t pid, std::set<unsigned long>& inodes, std::set<uid_t>& unseen) {
  const std::string path = "/proc/" + std::to_string(pid);
  const Folder folder(opendir((path + "/fd").c_str()), closedir);
  if (!folder && (errno == EMFILE || errno == ENFILE))
    throw Error("the launcher has no descriptor left to see who connects (see ulimit -n)");
  struct stat owner {};
  if (!folder && errno == EACCES && stat(path.c_str(), &owner) == 0) {
    // A process that may not be looked into seems to be root's.
    unseen.insert({owner.st_uid, geteuid()});
  }
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    char target[64];
    const ssize_t length =
        readlinkat(dirfd(folder.get()), entry->d_name, target, sizeof target - 1);
    if (length <= 0) continue;
    target[length] = '\0';
    unsigned long inode = 0;
    if (std::sscanf(target, "socket:[%lu]", &inode) == 1) inodes.insert(inode);
  }
}

}  // namespace

void LocalPeers::look_for_members() {
  members_.clear();
  const auto all = processes();
  for (const auto& [pid, process] : all) {
    if (descends(pid, getpid(), all) || is_marked_and_ours(pid, mark_))
      members_.emplace(pid, process.started);
  }
}

void LocalPeers::look_for_sockets() {
  inodes_.clear();
  unseen_.clear();
  for (const auto& [pid, started] : members_) {
    std::set<unsigned long> inodes;
    std::set<uid_t> unseen;
    look_into(pid, inodes, unseen);
    // Looked at afterwards: a stranger may have got the number of a member that has ended.
    const auto process = process_of(std::to_string(pid));
    if (!process || process->started != started) continue;
    inodes_.merge(inodes);
    unseen_.merge(unseen);
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
  const auto socket = find_socket(there, here);
  if (!socket) return {.gone = true};
  const auto known = [&] {
    return inodes_.contains(socket->inode) || unseen_.contains(socket->user);
  };
  // Looks at more only where that is needed: many workers come at once.
  if (!inodes_.contains(socket->inode)) look_for_sockets();
  if (!known()) look_for_members(), look_for_sockets();
  if (known()) return {.member = true, .user = socket->user};
  // A peer that merely looked whether somebody is here has closed it meanwhile.
  return {.gone = !find_socket(there, here), .user = socket->user};
}

}  // namespace brigade::launching
