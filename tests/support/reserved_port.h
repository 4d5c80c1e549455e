// Reserves a port on which processes must agree before any of them listens.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace brigade::testing {

// A port of loopback that the kernel gives to no other process while the object lives. A
// program that gets the number and sets SO_REUSEADDR, as servers do, can listen on it.
// Until then connections to it are refused.
class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, generic, length) != 0 || getsockname(fd_, generic, &length) != 0) {
      throw std::runtime_error("no port is free");
    }
    number_ = std::to_string(ntohs(address.sin_port));
  }
  ~ReservedPort() { close(fd_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  const std::string& number() const { return number_; }

 private:
  int fd_;
  std::string number_;
};

}  // namespace brigade::testing
