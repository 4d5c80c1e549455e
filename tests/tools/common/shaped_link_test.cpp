#include "common/shaped_link.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "brigade/error.h"
#include "brigade/launch.h"
#include "common/options.h"
#include "support/network_namespaces.h"

namespace brigade::tool {
namespace {

TEST(Rate, IsReadInManySpellings) {
  for (const auto& [text, rate] :
       std::vector<std::pair<const char*, double>>{{"100mbit", 100e6},
                                                   {"1gbit", 1e9},
                                                   {"2.5 Gbit/s", 2.5e9},
                                                   {"800k", 800e3},
                                                   {"10Gbps", 10e9},
                                                   {"9600", 9600}}) {
    EXPECT_DOUBLE_EQ(parse_rate(text, "--link"), rate) << text;
  }
  for (const char* bad : {"", "fast", "100xbit", "-1mbit", "0", "1kbit", "9tbit", "mbit",
                          "1mmbit", "nan", "inf"}) {
    EXPECT_THROW(parse_rate(bad, "--link"), ConfigError) << bad;
  }
  EXPECT_EQ(rate_text(100e6), "100 Mbit/s");
  EXPECT_EQ(rate_text(2.5e9), "2.5 Gbit/s");
}

TEST(ShapedLink, IsAsSlowAsItWasAskedToBe) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(ShapedLink::missing(), "");
  const ShapedLink link(3, 20e6);
  launch(3,
         [&](int rank) {
           const ProcessGroup group = link.join(rank, std::chrono::seconds(20));
           at::Tensor values = at::ones({250'000});  // 1 MB
           const auto begin = std::chrono::steady_clock::now();
           group.all_reduce(values);
           const std::chrono::duration<double> time =
               std::chrono::steady_clock::now() - begin;
           if (!values.eq(3).all().item<bool>()) throw Error("a wrong sum");
           // Each rank sends 4/3 MB, which takes half a second; a burst passes at once.
           if (time.count() < 0.4) throw Error("too quick for 20 Mbit/s");
         },
         {.wall = std::chrono::seconds(30), .prefix = false});
}

// The congestion controls of this process's sockets to other hosts.
std::set<std::string> congestion_controls() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in own{}, peer{};
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    std::array<char, 16> name{};
    socklen_t length = name.size();
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
        peer.sin_family == AF_INET && own.sin_addr.s_addr != peer.sin_addr.s_addr &&
        getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0)
      found.insert(name.data());
  }
  return found;
}

TEST(ShapedLink, IsTheSameWhateverCongestionControlAMachineIsSetTo) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const ShapedLink link(2, 1e9);
  launch(2,
         [&](int rank) {
           link.enter(rank);  // and so does this change the host's setting only
           std::ofstream("/proc/sys/net/ipv4/tcp_congestion_control") << "reno";
           const ProcessGroup group = link.join(rank, std::chrono::seconds(20));
           if (congestion_controls() != std::set<std::string>{"cubic"})
             throw Error("not only cubic");
         },
         {.wall = std::chrono::seconds(30), .prefix = false});
}

}  // namespace
}  // namespace brigade::tool
