#include "launch/tcp_store.h"

#include <arpa/inet.h>
#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace brigade::launching {
namespace {

// A name server that knows no names, for the calling thread alone, as long as the object
// lives. With none at all, LibTorch would write a warning for each address.
class NoNames {
 public:
  NoNames() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    own_.sin_family = AF_INET;
    own_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof own_;
    auto* address = reinterpret_cast<sockaddr*>(&own_);
    if (bind(socket_, address, length) != 0 ||
        getsockname(socket_, address, &length) != 0 ||
        (!(_res.options & RES_INIT) && res_init() != 0)) {
      return;  // then the host's own is asked
    }
    thread_ = std::thread([this] { answer(); });
    before_ = {_res.options, _res.nscount, _res.nsaddr_list[0]};
    set({_res.options & ~static_cast<unsigned long>(RES_USEVC), 1, own_});
  }
  ~NoNames() {
    if (thread_.joinable()) {
      set(before_);
      sendto(socket_, nullptr, 0, 0, reinterpret_cast<sockaddr*>(&own_), sizeof own_);
      thread_.join();
    }
    if (socket_ >= 0) close(socket_);
  }
  NoNames(const NoNames&) = delete;
  NoNames& operator=(const NoNames&) = delete;

 private:
  struct Resolver {
    unsigned long options;
    int servers;
    sockaddr_in first;
  };
  static void set(const Resolver& resolver) {
    _res.options = resolver.options;
    _res.nscount = resolver.servers;
    _res.nsaddr_list[0] = resolver.first;
  }

  // "There is no such name", to every question; an empty one ends it.
  void answer() {
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

  const int socket_;
  sockaddr_in own_{};
  Resolver before_{};
  std::thread thread_;
};

}  // namespace

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options) {
  const NoNames quiet;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

}  // namespace brigade::launching
