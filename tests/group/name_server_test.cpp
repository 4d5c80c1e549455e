// A name server that never answers does not slow a job down: nobody asks it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "launch/child.h"
#include "support/command.h"

namespace brigade {
namespace {

using testing::built_program;
using testing::Child;
using testing::run_command;

constexpr int kNotAllowed = 77;

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

// Enters a network of loopback alone, in which 127.0.0.1 is also the mute name server; this
// process and its children see no other. Returns the server's socket.
int enter_network_with_a_mute_name_server(const std::string& folder) {
  if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0 ||
      mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0) {
    _exit(kNotAllowed);
  }
  const std::string file = folder + "/resolv.conf";
  std::ofstream(file) << "nameserver 127.0.0.1\n";
  require(mount(file.c_str(), "/etc/resolv.conf", "", MS_BIND, "") == 0, "mount");
  const int server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq loopback{.ifr_ifrn = {"lo"}};
  loopback.ifr_flags = IFF_UP;
  require(ioctl(server, SIOCSIFFLAGS, &loopback) == 0, "lo");
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(53)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  return server;
}

bool was_asked(int server) {
  char question[512];
  return recv(server, question, sizeof question, MSG_DONTWAIT) >= 0;
}

// `says`: must be in stderr; if empty, stderr must be empty.
void nobody_asks_when(const std::string& command, const std::string& says = "") {
  testing::TemporaryFolder folder;
  Child child({}, [&] {
    const int server = enter_network_with_a_mute_name_server(folder.path());
    const auto result =
        run_command({"bash", "-c", command}, {.environment = {{"OMP_NUM_THREADS", "1"}}});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
    if (was_asked(server)) throw std::runtime_error("the name server was asked");
    if (says.empty() != result.err.empty() || result.err.find(says) == std::string::npos)
      throw std::runtime_error("stderr is '" + result.err + "'");
    // A question would be seen: this command asks one.
    run_command({"getent", "hosts", "nobody.example"},
                {.environment = {{"RES_OPTIONS", "timeout:1 attempts:1"}}});
    if (!was_asked(server)) throw std::runtime_error("the name server hears nothing");
  });
  const auto outcome = child.finish();
  if (outcome.code == kNotAllowed) GTEST_SKIP() << "only root can make network namespaces";
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

const std::string kWorker = built_program("launch_worker");
// The network is otherwise empty, so any port is free.
const std::string kTwoRanks =
    "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500; ";

TEST(NameServer, IsNotAskedByALauncherAndItsWorkers) {
  nobody_asks_when(built_program("brigade") + " run -n 2 " + kWorker);
}

TEST(NameServer, IsNotAskedByRanksWithoutALauncher) {
  nobody_asks_when(kTwoRanks + "RANK=1 " + kWorker + " & RANK=0 " + kWorker +
                   " && wait $!");
}

TEST(NameServer, IsNotAskedByARankWhosePeerDoesNotCome) {
  nobody_asks_when(kTwoRanks + "BRIGADE_TIMEOUT=2 RANK=0 " + kWorker + "; test $? = 1",
                   "rendezvous: rank 1 of 2 did not come within 2 s");
}

}  // namespace
}  // namespace brigade
