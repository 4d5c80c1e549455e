// Somebody who connects to a port that is not meant for them.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace brigade::testing {

class Stranger {
 public:
  explicit Stranger(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Not for longer than a second, where nobody answers.
    const timeval second{.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  bool connected() const { return connected_; }
  bool say(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // `count` bytes; fewer when the other end has gone, or says no more for 10 s.
  std::string hear(size_t count) const {
    std::string text;
    char byte = 0;
    for (pollfd ready{fd_, POLLIN, 0}; text.size() < count;) {
      if (poll(&ready, 1, 10'000) <= 0 || recv(fd_, &byte, 1, 0) != 1) break;
      text += byte;
    }
    return text;
  }
  // Whether the other end closes the connection, within so many milliseconds.
  bool is_turned_away(int limit = 10'000) const {
    pollfd ready{fd_, POLLIN, 0};
    char byte = 0;
    return poll(&ready, 1, limit) > 0 && recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  int fd_;
  bool connected_ = false;
};

}  // namespace brigade::testing
