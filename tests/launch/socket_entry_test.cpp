// What the kernel says of a connection's sockets, by netlink and in its tables.
#include "launch/admission/socket_entry.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace brigade::launching {
namespace {

sockaddr_storage loopback(int family) {
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

socklen_t size_of(int family) {
  return family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

sockaddr_storage own_end(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return address;
}

// One who listens on loopback, and one who is connected to it.
struct Connection {
  explicit Connection(int family)
      : listener(socket(family, SOCK_STREAM, 0)), client(socket(family, SOCK_STREAM, 0)) {
    const sockaddr_storage any_port = loopback(family);
    EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&any_port), size_of(family)),
              0);
    EXPECT_EQ(listen(listener, 1), 0);
    const sockaddr_storage to = own_end(listener);
    EXPECT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&to), size_of(family)), 0);
  }
  ~Connection() {
    close(client);
    close(listener);
  }
  const int listener;
  const int client;
};

class SocketEntries : public ::testing::TestWithParam<int> {};

TEST_P(SocketEntries, NameTheSocketThatConnectedInBothWays) {
  const Connection connection(GetParam());
  struct stat mine {};
  ASSERT_EQ(fstat(connection.client, &mine), 0);
  const auto from = own_end(connection.client), to = own_end(connection.listener);
  for (const auto& entry :
       {find_in_tables(from, to), find_by_diag(from, to), find_socket(from, to)}) {
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->inode, mine.st_ino);
    EXPECT_EQ(entry->user, getuid());
  }
}

TEST_P(SocketEntries, AreNoneForASocketThatListensOrIsClosed) {
  const Connection connection(GetParam());
  const auto from = own_end(connection.client), to = own_end(connection.listener);
  sockaddr_storage nobody = from;
  reinterpret_cast<sockaddr_in&>(nobody).sin_port = 0;
  for (const auto find : {find_in_tables, find_by_diag, find_socket}) {
    EXPECT_FALSE(find(to, nobody)) << "somebody listens there";
    EXPECT_FALSE(find(nobody, to));
  }
}

INSTANTIATE_TEST_SUITE_P(OfBothFamilies, SocketEntries,
                         ::testing::Values(AF_INET, AF_INET6), [](const auto& info) {
                           return info.param == AF_INET ? "IPv4" : "IPv6";
                         });

}  // namespace
}  // namespace brigade::launching
