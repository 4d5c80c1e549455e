#include "group/sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string_view>

#include "brigade/error.h"
#include "group/network.h"

namespace brigade::group {

std::vector<int> open_descriptors() {
  std::vector<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    int fd = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), fd);
    if (error == std::errc() && end == name.data() + name.size()) found.push_back(fd);
  }
  return found;
}

void check_descriptors(size_t count, const std::string& whom) {
  std::vector<int> copies;
  while (copies.size() < count) {
    const int copy = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (copy < 0) break;
    copies.push_back(copy);
  }
  for (const int copy : copies) close(copy);
  if (copies.size() == count) return;
  throw Error("too few file descriptors are left for " + whom + ": " +
              std::to_string(copies.size()) + " of the " + std::to_string(count) +
              " that it needs; raise the limit (ulimit -n)");
}

std::string end_of(int socket, int (*name)(int, sockaddr*, socklen_t*)) {
  Address address;
  address.length = sizeof address.storage;
  if (name(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    return {};
  const int family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return {};
  return endpoint(address.host(), address.port());
}

std::map<ino_t, std::string> connections() {
  std::map<ino_t, std::string> found;
  for (const int fd : open_descriptors()) {
    struct stat about {};
    if (end_of(fd, getpeername).empty() || fstat(fd, &about) != 0) continue;
    found[about.st_ino] = end_of(fd, getsockname);
  }
  return found;
}

}  // namespace brigade::group
