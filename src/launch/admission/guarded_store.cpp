#include "launch/admission/guarded_store.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "brigade/error.h"
#include "group/network.h"

namespace brigade::launching {
namespace {

// Connections that may be on their way at once; the kernel bounds a filter's length.
constexpr size_t kMostPorts = 128;

sockaddr_in on_loopback(std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return in;
}

// Closes, and lets the caller's errno stand.
int without(int fd) {
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

std::uint16_t own_port(int fd) {
  return static_cast<std::uint16_t>(group::own_address(fd).port());
}

}  // namespace

GuardedStore::GuardedStore()
    : listener_("127.0.0.1", 0), socket_(fcntl(listener_.fd(), F_DUPFD_CLOEXEC, 3)) {
  if (socket_ >= 0) return;
  throw RendezvousError(std::string("no descriptor for the store: ") +
                        std::strerror(errno));
}

GuardedStore::~GuardedStore() { close(socket_); }

c10::intrusive_ptr<c10d::Store> GuardedStore::serve(const std::string& run_id) {
  auto store = listener_.serve(run_id);
  const std::scoped_lock lock(mutex_);
  // Not before: the store connects to itself, from a port of its own choice.
  served_ = true;
  hear_only_own_ports();
  return store;
}

// Drops every segment that comes from another port.
void GuardedStore::hear_only_own_ports() {
  if (!served_) return;
  std::vector<sock_filter> steps{BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0)};  // its source port
  for (std::uint16_t port : ports_) {
    steps.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 1));
    steps.push_back(BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF));
  }
  steps.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  const sock_fprog program{.len = static_cast<unsigned short>(steps.size()),
                           .filter = steps.data()};
  if (setsockopt(socket_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) {
    return;
  }
  std::fprintf(stderr,
               "brigade: other users of this host can reach the job's store: the kernel "
               "takes no filter (%s)\n",
               std::strerror(errno));
  // Else the filter of before would keep our own next connection out.
  const int unused = 0;
  setsockopt(socket_, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  served_ = false;
}

int GuardedStore::connect() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const sockaddr_in own = on_loopback(0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
    return without(fd);
  {
    const std::scoped_lock lock(mutex_);
    ports_.push_back(own_port(fd));
    if (ports_.size() > kMostPorts) ports_.pop_front();
    hear_only_own_ports();
  }
  const sockaddr_in store = on_loopback(listener_.port());
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&store), sizeof store) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    disconnect(fd);
    errno = error;
    return -1;
  }
  return fd;
}

void GuardedStore::disconnect(int connection) {
  // The port is given back last: from then on others can have it.
  const std::scoped_lock lock(mutex_);
  if (std::erase(ports_, own_port(connection)) > 0) hear_only_own_ports();
  close(connection);
}

}  // namespace brigade::launching
