#include "group/network.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/input_file.h"
#include "brigade/error.h"

namespace brigade::group {
namespace {

using namespace std::chrono_literals;

class Socket {
 public:
  Socket(int family, int type) : fd_(socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string why_not_listen(int error) {
  if (error == EADDRINUSE)
    return "the port is in use, perhaps by another job; choose another";
  if (error == EADDRNOTAVAIL) {
    return "it is no address of this host, where rank 0 runs; expected one that is";
  }
  if (error == EACCES) return "ports below 1024 need privileges; choose another";
  return std::strerror(error);
}

int remaining_ms(Deadline deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
}

// Tries once. Returns errno, or 0 when connected.
int try_connect(const Address& address, Deadline deadline) {
  Socket socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK);
  if (socket.get() < 0) return errno;
  if (connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd ready{socket.get(), POLLOUT, 0};
    if (poll(&ready, 1, remaining_ms(deadline)) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) return error;
  }
  return 0;
}

// Tries each address once. Returns the first one that answers; else `error` is the last
// one's.
std::optional<Address> first_to_answer(const std::vector<Address>& addresses,
                                       Deadline deadline, int& error) {
  for (const Address& address : addresses) {
    error = try_connect(address, deadline);
    if (!error) return address;
  }
  return std::nullopt;
}

// The source address of datagrams to `peer`; connecting a UDP socket sends nothing.
std::optional<Address> route_to(const Address& peer) {
  Socket socket(peer.storage.ss_family, SOCK_DGRAM);
  if (socket.get() < 0 || connect(socket.get(), peer.get(), peer.length) != 0) {
    return std::nullopt;
  }
  return own_address(socket.get());
}

std::optional<std::string> first_interface_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  std::optional<std::string> found;
  for (ifaddrs* entry = list; entry && !found; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) || !(entry->ifa_flags & IFF_UP)) continue;
    Address address;
    address.length = sizeof(sockaddr_in);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    found = address.host();
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

bool Address::loopback() const {
  if (storage.ss_family == AF_INET) {
    auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
  }
  auto& in6 = reinterpret_cast<const sockaddr_in6&>(storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

std::string Address::host() const {
  char text[NI_MAXHOST] = "?";
  getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

int Address::port() const {
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

Address own_address(int socket) {
  Address address;
  address.length = sizeof address.storage;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

std::string endpoint(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error) {
    throw RendezvousError("cannot find the host '" + host + "': " +
                          (error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error)));
  }
  std::vector<Address> found;
  for (addrinfo* entry = list; entry; entry = entry->ai_next) {
    Address address;
    address.length = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    found.push_back(address);
  }
  freeaddrinfo(list);
  return found;
}

int listen_on(std::span<const Address> addresses) {
  int error = 0;
  for (const Address& address : addresses) {
    Socket socket(address.storage.ss_family, SOCK_STREAM);
    int yes = 1;
    // A restarted job must be able to bind its port while old connections are in TIME_WAIT.
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (socket.get() >= 0 && bind(socket.get(), address.get(), address.length) == 0 &&
        listen(socket.get(), 2048) == 0) {
      return socket.release();
    }
    error = errno;
  }
  const Address& last = addresses.back();
  throw RendezvousError("cannot listen on " + endpoint(last.host(), last.port()) + ": " +
                        why_not_listen(error));
}

int listen_on_all(int port) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(port));
  address.length = sizeof in;
  return listen_on({&address, 1});
}

std::optional<Address> try_reach(const std::string& host, int port, Deadline deadline,
                                 std::string* why) {
  try {
    int error = 0;
    const auto found = first_to_answer(resolve(host, port), deadline, error);
    if (!found && why) *why = std::strerror(error);
    return found;
  } catch (const RendezvousError& unknown) {
    if (why) *why = unknown.what();
    return std::nullopt;
  }
}

Address reach(const std::string& host, int port, Deadline deadline) {
  const std::vector<Address> addresses = resolve(host, port);
  const auto start = std::chrono::steady_clock::now();
  auto pause = 5ms;
  while (true) {
    int error = ETIMEDOUT;
    if (const auto found = first_to_answer(addresses, deadline, error)) return *found;
    if (std::chrono::steady_clock::now() + pause >= deadline) {
      auto seconds = std::chrono::duration<double>(deadline - start).count();
      char spent[32];
      std::snprintf(spent, sizeof spent, "%.1f", seconds);
      throw RendezvousError("cannot reach the store at " + endpoint(host, port) +
                            " within " + spent + " s: " + std::strerror(error) +
                            "; is rank 0, or the launcher, running there?");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(200));
  }
}

std::string outward_address(const std::string& peer) {
  // 192.0.2.0/24 is reserved for documentation, so its route is the default route.
  for (const std::string& target : {peer, std::string("192.0.2.1")}) {
    if (target.empty()) continue;
    for (const Address& address : resolve(target, 9)) {
      auto local = route_to(address);
      if (local && !local->loopback()) return local->host();
    }
  }
  return first_interface_address().value_or("127.0.0.1");
}

std::string host_identity() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  std::string boot = base::read_whole("/proc/sys/kernel/random/boot_id");
  boot.erase(boot.find_last_not_of('\n') + 1);
  // Containers of one machine share its boot id, and may share their name, but not their
  // loopback interface.
  char net[64] = "";
  if (readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = 0;
  return std::string(name) + "/" + boot + "/" + net;
}

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
