#include "group/store/resolver_off.h"

#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace brigade::group {

ResolverOff::ResolverOff() : ready_((_res.options & RES_INIT) || res_init() == 0) {
  if (!ready_) return;
  options_ = _res.options;
  servers_ = _res.nscount;
  first_ = _res.nsaddr_list[0];
  _res.nscount = 0;
}

ResolverOff::~ResolverOff() {
  if (!ready_) return;
  _res.options = options_;
  _res.nscount = servers_;
  _res.nsaddr_list[0] = first_;
}

void ResolverOff::ask(const sockaddr_in& server) const {
  if (!ready_) return;
  _res.options &= ~static_cast<unsigned long>(RES_USEVC);  // by datagrams
  _res.nsaddr_list[0] = server;
  _res.nscount = 1;
}

ResolverAnswersNo::ResolverAnswersNo()
    : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  own_.sin_family = AF_INET;
  own_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof own_;
  auto* address = reinterpret_cast<sockaddr*>(&own_);
  if (bind(socket_, address, length) != 0 || getsockname(socket_, address, &length) != 0)
    return;
  thread_ = std::thread([this] { answer(); });
  ask(own_);
}

ResolverAnswersNo::~ResolverAnswersNo() {
  if (thread_.joinable()) {
    sendto(socket_, nullptr, 0, 0, reinterpret_cast<sockaddr*>(&own_), sizeof own_);
    thread_.join();
  }
  if (socket_ >= 0) close(socket_);
}

// An empty datagram ends it.
void ResolverAnswersNo::answer() const {
  std::array<unsigned char, 1024> message;
  sockaddr_in from{};
  auto* address = reinterpret_cast<sockaddr*>(&from);
  for (socklen_t length = sizeof from;; length = sizeof from) {
    const ssize_t size =
        recvfrom(socket_, message.data(), message.size(), 0, address, &length);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    if (size < 12) continue;  // shorter than a header
    message[2] |= 0x80;       // a reply
    message[3] = 0x83;        // recursion available, no such name
    sendto(socket_, message.data(), static_cast<size_t>(size), 0, address, length);
  }
}

}  // namespace brigade::group
