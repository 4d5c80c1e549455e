// A cable with latency, for kernels without netem: delays every packet from one of two
// network interfaces, and sends it out at the other.
//
//   delay_link LEFT RIGHT MICROSECONDS
//
// Both are interfaces, without addresses, of the network namespace that it runs in. Prints
// "ready", and runs until stdin is closed. Needs root.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Includes the kernel's header of a packet: the receiver still has to compute checksums and
// to cut segments.
constexpr size_t kLargestPacket = (size_t{1} << 16) + 256;

void check(bool done, const std::string& what) {
  if (!done) throw std::runtime_error(what + ": " + std::strerror(errno));
}

// Sees all packets that come in at an interface, and none that go out.
int open_interface(const std::string& name) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  const int on = 1;
  check(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) == 0,
        "PACKET_VNET_HDR");
  check(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0,
        "PACKET_IGNORE_OUTGOING");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = __builtin_bswap16(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  check(address.sll_ifindex > 0, name);
  packet_mreq all{};
  all.mr_ifindex = address.sll_ifindex;
  all.mr_type = PACKET_MR_PROMISC;
  check(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) == 0, name);
  check(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, name);
  return fd;
}

// One direction of the cable.
class Direction {
 public:
  Direction(int from, int to, std::chrono::microseconds delay)
      : from_(from), to_(to), delay_(delay), buffer_(kLargestPacket) {}

  int from() const { return from_; }
  void take_in() {
    for (;;) {
      const ssize_t length = recv(from_, buffer_.data(), buffer_.size(), 0);
      if (length <= 0) return;
      waiting_.push_back({Clock::now() + delay_,
                          std::vector<char>(buffer_.data(), buffer_.data() + length)});
    }
  }
  // A packet that cannot be sent is lost, as on any cable.
  void send_out() {
    for (; !waiting_.empty() && waiting_.front().due <= Clock::now(); waiting_.pop_front())
      (void)!write(to_, waiting_.front().bytes.data(), waiting_.front().bytes.size());
  }
  std::optional<Clock::time_point> next() const {
    if (waiting_.empty()) return std::nullopt;
    return waiting_.front().due;
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  const int from_, to_;
  const std::chrono::microseconds delay_;
  std::vector<char> buffer_;
  std::deque<Packet> waiting_;
};

// The time until the next packet is due; at most a second.
timespec time_left(const std::array<Direction, 2>& directions) {
  auto left = std::chrono::nanoseconds(std::chrono::seconds(1));
  for (const Direction& each : directions) {
    if (each.next())
      left = std::min<std::chrono::nanoseconds>(left, *each.next() - Clock::now());
  }
  left = std::max(left, std::chrono::nanoseconds(0));
  return {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
}

void relay(const std::string& left, const std::string& right,
           std::chrono::microseconds delay) {
  const int a = open_interface(left), b = open_interface(right);
  std::array<Direction, 2> directions{Direction(a, b, delay), Direction(b, a, delay)};
  prctl(PR_SET_TIMERSLACK, 1);
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    std::array<pollfd, 3> ready{{{a, POLLIN, 0}, {b, POLLIN, 0}, {0, POLLIN, 0}}};
    const timespec wait = time_left(directions);
    check(ppoll(ready.data(), ready.size(), &wait, nullptr) >= 0, "ppoll");
    if (ready[2].revents != 0) return;
    for (Direction& each : directions) {
      each.take_in();
      each.send_out();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: delay_link LEFT RIGHT MICROSECONDS\n");
    return 2;
  }
  try {
    relay(argv[1], argv[2], std::chrono::microseconds(std::stol(argv[3])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "delay_link: %s\n", error.what());
    return 1;
  }
}
