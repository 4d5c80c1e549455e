#include "group/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "brigade/process_group.h"
#include "group/network.h"
#include "launch/child.h"
#include "support/ranks.h"
#include "support/reserved_port.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;
using namespace testing;

// A loopback socket with its own port, closed by the destructor.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  int fd() const { return fd_; }
  std::string port() const { return std::to_string(port_); }

 private:
  int fd_;
  int port_;
};

Variables torchrun(int rank, int size, const std::string& port,
                   const Variables& more = {}) {
  Variables all{{"RANK", std::to_string(rank)},
                {"WORLD_SIZE", std::to_string(size)},
                {"LOCAL_RANK", std::to_string(rank)},
                {"LOCAL_WORLD_SIZE", std::to_string(size)},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", port},
                {"BRIGADE_TIMEOUT", std::to_string(kNever.count())}};
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}

// The outcomes of `size` ranks that all do the same.
std::vector<Outcome> run_world(int size,
                               const std::function<Variables(int rank)>& variables,
                               const std::function<void()>& body) {
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(std::make_unique<Child>(variables(rank), body));
  }
  std::vector<Outcome> outcomes;
  for (auto& child : children) outcomes.push_back(child->finish());
  return outcomes;
}

std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry, gone);
    if (target.rfind("socket:[", 0) == 0)
      inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// The local addresses, in /proc's spelling, that this process listens on.
std::vector<std::string> listening_addresses() {
  std::vector<std::string> found;
  const std::set<std::string> own = own_sockets();
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout,
          inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      if (state == "0A" && own.count(inode))
        found.push_back(local.substr(0, local.find(':')));
    }
  }
  return found;
}

bool loopback_only() {
  for (const std::string& address : listening_addresses()) {
    if (address != "0100007F" && address != "00000000000000000000000001000000")
      return false;
  }
  return true;
}

TEST(Rendezvous, AloneIsSoloAndOpensNoPort) {
  Child child({}, [] {
    ProcessGroup group = init_process_group();
    group.barrier();
    join_and_sum();
    ProcessGroup copy = group.duplicate();
    if (group.backend() != "solo" || copy.backend() != "solo")
      throw std::runtime_error("not solo");
    if (!own_sockets().empty()) throw std::runtime_error("a socket is open");
  });
  expect_outcome(child.finish(), 0, {});
}

TEST(Rendezvous, RankZeroHostsTheStoreOnLoopbackOnly) {
  const ReservedPort port;
  // The name is not loopback's, but a job of one host stays on that host.
  expect_all_well(run_world(
      3,
      [&](int rank) {
        return torchrun(rank, 3, port.number(), {{"MASTER_ADDR", "192.0.2.77"}});
      },
      [] {
        ProcessGroup group = init_process_group();
        ProcessGroup copy = group.duplicate();
        group.barrier();
        if (listening_addresses().empty())
          throw std::runtime_error("found no listener at all");
        if (!loopback_only()) throw std::runtime_error("listens beyond loopback");
        group.barrier();
      }));
}

TEST(Rendezvous, AStoreOfRankZeroCanBeMetAgain) {
  const ReservedPort port;
  expect_all_well(run_world(
      2, [&](int rank) { return torchrun(rank, 2, port.number()); },
      [] {
        for (int i = 0; i < 3; ++i) join_and_sum();
      }));
}

TEST(Rendezvous, TcpNeedsNoVariables) {
  const ReservedPort port;
  const std::string method = "tcp://127.0.0.1:" + port.number();
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(std::make_unique<Child>(Variables{}, [&] {
      ProcessGroupOptions options{.backend = "gloo",
                                  .init_method = method,
                                  .rank = rank,
                                  .world_size = 3,
                                  .timeout = kNever};
      ProcessGroup group = init_process_group(options);
      if (group.local_rank() != rank || group.local_size() != 3)
        throw std::runtime_error("place");
      if (!loopback_only()) throw std::runtime_error("listens beyond loopback");
      group.barrier();
    }));
  }
  for (auto& child : children) expect_outcome(child->finish(), 0, {});
}

TEST(Rendezvous, BadOptionsAreRefusedAtOnce) {
  auto refused = [](ProcessGroupOptions options, const std::string& said) {
    Child child(torchrun(1, 2, "29500"), [&] { init_process_group(options); });
    expect_outcome(child.finish(), 2, {said});
  };
  refused({.backend = "glo"}, "backend='glo': expected gloo, nccl or auto");
  refused({.init_method = "http://x"}, "init_method='http://x': expected env://");
  refused({.init_method = "tcp://x"}, "init_method='tcp://x': expected tcp://HOST:PORT");
  refused({.init_method = "tcp://x:70000"}, "expected tcp://HOST:PORT");
  refused(
      {.init_method = "file:///tmp/meet"},
      "init_method='file:///tmp/meet': expected env:// or tcp://HOST:PORT; ranks do not "
      "meet in a folder");
  refused({.timeout = 0ms}, "timeout=0 ms");
  refused({.rank = 5}, "rank 5 of a world of 2");
}

TEST(Rendezvous, ABadVariableIsAConfigErrorOfInit) {
  Child child(torchrun(0, 2, "29500", {{"RANK", "1x"}}), [] { init_process_group(); });
  expect_outcome(child.finish(), 2, {"RANK='1x': expected a whole number"});
}

TEST(Rendezvous, NobodyThereIsSaidWithAddressAndCause) {
  const ReservedPort port;
  Child child(torchrun(1, 2, port.number(), {{"BRIGADE_TIMEOUT", "1"}}),
              [] { init_process_group(); });
  expect_outcome(child.finish(), 3,
                 {"127.0.0.1:" + port.number(), "Connection refused", "within 1.0 s"});
}

TEST(Rendezvous, AnUnknownHostIsNamed) {
  Variables variables = torchrun(1, 2, "29500", {{"MASTER_ADDR", "no-such-host.invalid"}});
  variables["LOCAL_WORLD_SIZE"] = "1";
  variables["LOCAL_RANK"] = "0";
  variables["BRIGADE_TIMEOUT"] = "1";
  Child child(variables, [] { init_process_group(); });
  Outcome outcome = child.finish();
  expect_outcome(outcome, outcome.code == 1 ? 1 : 3, {"no-such-host.invalid"});
}

TEST(Rendezvous, APortInUseIsNamed) {
  Listener taken;
  Child child(torchrun(0, 2, taken.port()), [] { init_process_group(); });
  expect_outcome(child.finish(), 3, {"127.0.0.1:" + taken.port(), "in use"});
}

TEST(Rendezvous, AMasterAddressOfAnotherHostIsNamedOnRankZero) {
  Variables variables = torchrun(0, 2, "29500", {{"MASTER_ADDR", "192.0.2.1"}});
  variables["LOCAL_WORLD_SIZE"] = "1";
  Child child(variables, [] { init_process_group(); });
  expect_outcome(child.finish(), 3, {"192.0.2.1", "no address of this host"});
}

TEST(Rendezvous, AMuteServerEndsTheProcessWithAReport) {
  Listener mute;
  const std::string file =
      std::filesystem::temp_directory_path() / ("brigade-error-" + mute.port());
  Child child(torchrun(1, 2, mute.port(),
                       {{"TORCHELASTIC_ERROR_FILE", file}, {"BRIGADE_TIMEOUT", "1"}}),
              [] { init_process_group(); });
  expect_outcome(
      child.finish(), 1,
      {"rank 1: the store at 127.0.0.1:" + mute.port() + " does not answer: connect"});
  std::stringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_NE(written.str().find("TimeoutError: rank 1: the store at"), std::string::npos);
  std::filesystem::remove(file);
}

TEST(Rendezvous, AServerThatTalksGarbageIsRefused) {
  Listener garbage;
  Child server({}, [&] {
    while (true) {
      int client = accept(garbage.fd(), nullptr, nullptr);
      std::string noise(64, '\xff');
      if (send(client, noise.data(), noise.size(), MSG_NOSIGNAL) < 0) continue;
      shutdown(client, SHUT_WR);
    }
  });
  Child child(torchrun(1, 2, garbage.port(), {{"BRIGADE_TIMEOUT", "4"}}),
              [] { init_process_group(); });
  expect_outcome(child.finish(), 3,
                 {"the store at 127.0.0.1:" + garbage.port() + " does not work"});
}

TEST(Rendezvous, AStrangerWhoTalksGarbageToTheStoreDoesNoHarm) {
  testing::run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 1) {
      for (unsigned char byte : {0x00, 0x41, 0xff}) {
        Listener unused;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port =
            htons(static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
        ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        std::string noise(4096, static_cast<char>(byte));
        EXPECT_GT(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
        close(fd);
      }
    }
    for (int i = 0; i < 3; ++i) group.barrier();
  });
}

TEST(Rendezvous, AMissingRankIsNamed) {
  const ReservedPort port;
  auto outcomes = run_world(
      2,
      [&](int rank) {
        return torchrun(rank, 3, port.number(), {{"BRIGADE_TIMEOUT", "3"}});
      },
      [] { init_process_group(); });
  expect_outcome(outcomes[0], 4, {"rendezvous: rank 2 of 3 did not come within 3 s"});
  // Rank 1 gets the same error, or one that says that rank 0 gave up first and closed the
  // store.
  EXPECT_TRUE(outcomes[1].code == 4 || outcomes[1].code == 3) << outcomes[1].text;
}

TEST(Rendezvous, ARankThatComesTwiceIsNamed) {
  const ReservedPort port;
  auto outcomes = run_world(
      3,
      [&](int i) {
        return torchrun(std::min(i, 1), 3, port.number(), {{"BRIGADE_TIMEOUT", "3"}});
      },
      [] { init_process_group(); });
  int twice = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.code, 0);
    twice += outcome.text.find("rank 1 came twice") != std::string::npos;
  }
  EXPECT_EQ(twice, 1);
}

TEST(Rendezvous, RanksThatDisagreeAboutTheWorldSizeAreTold) {
  const ReservedPort port;
  auto outcomes = run_world(
      2, [&](int rank) { return torchrun(rank, 2 + rank, port.number()); },
      [] { init_process_group(); });
  expect_outcome(
      outcomes[0], 5,
      {"rank 0 is at 'rendezvous of 2 ranks'", "rank 1 at 'rendezvous of 3 ranks'"});
  EXPECT_NE(outcomes[1].code, 0);
}

TEST(Rendezvous, AStoppedStoreHostEndsItsPeersWithAReport) {
  const ReservedPort port;
  int ready[2], stopped[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(stopped), 0);
  char byte;
  Child host(torchrun(0, 2, port.number()), [] {
    ProcessGroup group = init_process_group();
    while (true) std::this_thread::sleep_for(1h);
  });
  Child peer(torchrun(1, 2, port.number()), [&] {
    ProcessGroup group = init_process_group();
    group.store()->setTimeout(500ms);
    if (write(ready[1], "r", 1) != 1 || read(stopped[0], &byte, 1) != 1) return;
    group.store()->get("anything");
  });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(host.pid(), SIGSTOP);
  ASSERT_EQ(write(stopped[1], "s", 1), 1);
  expect_outcome(peer.finish(), 1, {"does not answer: get of ", "anything"});
  for (int fd : {ready[0], ready[1], stopped[0], stopped[1]}) close(fd);
}

TEST(Rendezvous, TheInterfaceToListenOnCanBeNamed) {
  auto run = [](const Variables& more, const std::string& interface) {
    const ReservedPort port;
    return run_world(
        2, [&](int rank) { return torchrun(rank, 2, port.number(), more); },
        [&] { join_and_sum({.backend = "gloo", .interface = interface}); });
  };
  expect_all_well(run({}, "lo"));
  expect_all_well(run({{"GLOO_SOCKET_IFNAME", "lo"}}, ""));
  for (const Outcome& outcome : run({{"GLOO_SOCKET_IFNAME", "none0"}}, "")) {
    expect_outcome(outcome, 3, {"interface 'none0'"});
  }
  for (const Outcome& outcome : run({{"GLOO_SOCKET_IFNAME", "lo"}}, "none1")) {
    expect_outcome(outcome, 3, {"interface 'none1'"});
  }
}

TEST(Rendezvous, NcclWithoutADeviceIsRefusedWithTheReason) {
  const ReservedPort port;
  Child child(torchrun(1, 2, port.number(), {{"BRIGADE_TIMEOUT", "1"}}), [] {
    ProcessGroupOptions options{.backend = "nccl"};
    init_process_group(options);
  });
  Outcome outcome = child.finish();
  // If there is a device, nobody listens at the port.
  EXPECT_TRUE(outcome.code == 2 || outcome.code == 3) << outcome.text;
  if (outcome.code == 2) {
    EXPECT_NE(outcome.text.find("backend='nccl' cannot be used here: "), std::string::npos)
        << outcome.text;
  }
}

TEST(Rendezvous, RestartsDoNotMeetEachOthersKeys) {
  testing::run_ranks(2, [](ProcessGroup group) {
    // This is as after a restart under the same launcher, with rank 1 late.
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    if (group.rank() == 1) std::this_thread::sleep_for(100ms);
    join_and_sum({.backend = "gloo", .timeout = 20s});
  });
}

}  // namespace
}  // namespace brigade
