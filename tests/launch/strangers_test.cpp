// Who does not belong to a job gets nowhere, and does the job no harm.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <list>
#include <set>
#include <sstream>

#include "group/network.h"
#include "launch/admission/admission.h"
#include "launch/admission/guarded_store.h"
#include "launch/child.h"
#include "launch/several_nodes.h"
#include "launch/stranger.h"

namespace brigade {
namespace {

using testing::Stranger;
using testing::TemporaryFolder;

constexpr const char* kGreeting = "brigade admission 1\n";

bool has(const CommandResult& result, const std::string& text) {
  return result.err.find(text) != std::string::npos;
}

// The number behind `name` in what a command has said.
int number_after(const std::string& name, const std::string& said) {
  return std::stoi(said.substr(said.find(name) + name.size()));
}

class Strangers : public Nodes {
 protected:
  std::string secret_file(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text << "\n";
    chmod(path.c_str(), 0600);
    return path;
  }
  // Made after the worker has said that it waits for it.
  std::string flag() const { return folder_.path() + "/go"; }
  void raise_flag() const { std::ofstream(flag()) << "go"; }

  const TemporaryFolder folder_;
  const std::string good_ = secret_file("good", "one secret of all hosts");
  const std::string worker_ = testing::built_program("launch_worker");
};

TEST_F(Strangers, HostsWithTheSameSecretTrainAndNoWorkerSeesIt) {
  // From a file on one host and a variable on the other, and through a restart.
  const std::string line =
      "test -z \"$BRIGADE_SECRET\" || exit 9; exec " + worker_ + " once";
  auto first = node(0, {"--secret", good_, "--max-restarts", "1", "bash", "-c", line});
  options_.environment["BRIGADE_SECRET"] = "one secret of all hosts";
  auto second = node(1, {"--max-restarts", "1", "bash", "-c", line});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("sum 3 restarts 1"), std::string::npos) << result.out;
  }
}

TEST_F(Strangers, HostsWithDifferentSecretsOrNoneAreToldSoAndWhere) {
  const std::string bad = secret_file("bad", "another secret of others");
  using Words = std::vector<std::string>;
  struct Pair {
    Words first, second;
    std::string first_says, second_says;
    testing::ReservedPort port = {};
    std::unique_ptr<Command> nodes[2] = {};
  };
  Pair pairs[]{
      {{"--secret", good_},
       {"--secret", bad},
       "it does not know the job's secret",
       "it refused this host's secret: the two differ"},
      {{"--secret", good_},
       {},
       "it does not know the job's secret",
       "asks for the job's secret, and this one has none"},
      {{},
       {"--secret", good_},
       "node 1 did not come within 3 s",
       "does not ask for a secret, and this one has one"},
  };
  options_.environment["BRIGADE_TIMEOUT"] = "3";
  for (Pair& pair : pairs) {
    port_ = pair.port.number();
    for (int rank : {0, 1}) {
      Words words = rank ? pair.second : pair.first;
      words.push_back("true");
      pair.nodes[rank] = node(rank, words);
    }
  }
  for (Pair& pair : pairs) {
    const CommandResult first = pair.nodes[0]->finish();
    const CommandResult second = pair.nodes[1]->finish();
    EXPECT_EQ(first.exit_code, 1);
    EXPECT_EQ(second.exit_code, 1);
    EXPECT_TRUE(has(first, pair.first_says)) << first.err;
    EXPECT_TRUE(has(second, pair.second_says)) << second.err;
    EXPECT_TRUE(has(second, "127.0.0.1:" + pair.port.number())) << second.err;
    for (const CommandResult& result : {first, second})
      EXPECT_FALSE(has(result, "of all hosts"));
  }
}

TEST_F(Strangers, NoiseAndSilenceAtThePortHoldNobodyUp) {
  auto first = node(0, {"--secret", good_, worker_});
  const int port = std::stoi(port_);
  // Silent ones, more than may wait; each is greeted, so that node 0 has them all.
  std::list<Stranger> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(port);
    while (!silent.back().connected()) {  // node 0 does not listen yet
      usleep(20'000);
      silent.pop_back();
      silent.emplace_back(port);
    }
    ASSERT_EQ(silent.back().hear(52).substr(0, 20), kGreeting);
  }
  // The oldest had to go when the others came, long before their time was up.
  EXPECT_TRUE(silent.front().is_turned_away(100));
  EXPECT_FALSE(silent.back().is_turned_away(0));
  // Half a hello, a hello of noise, and what the store's own client begins with.
  const Stranger half(port);
  EXPECT_TRUE(half.say(std::string(30, 'x')));
  const Stranger noise(port);
  EXPECT_EQ(noise.hear(52).substr(0, 20), kGreeting);
  EXPECT_TRUE(noise.say(std::string(68, 'x')));
  EXPECT_EQ(noise.hear(100), "n" + std::string(32, '\0'));
  const Stranger client(port);
  EXPECT_TRUE(client.say(std::string("\0\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", 10)));
  auto second = node(1, {"--secret", good_, worker_});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("sum 3"), std::string::npos) << result.out;
  }
}

TEST_F(Strangers, OnOneHostTheStoreIsForTheJobsOwnProcesses) {
  // The worker, and a child of it that has left its session, get an answer to the store's
  // ping; this process gets none.
  const std::string ping =
      folder_.script("ping",
                     "#!/bin/bash\nexec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT\n"
                     "printf '\\0\\xce\\xf7\\x85\\x3c\\x0d\\x01\\x02\\x03\\x04' >&3\n"
                     "test $(timeout 20 head -c 4 <&3 | wc -c) = 4 && echo answered\n");
  Command command(brigade_run({"bash", "-c",
                               ping + "; setsid -w " + ping +
                                   "; echo port $MASTER_PORT; until test -e " + flag() +
                                   "; do sleep 0.05; done"}),
                  options_);
  ASSERT_TRUE(command.wait_for_output("port "));
  ASSERT_TRUE(command.wait_for_output("\n"));
  const Stranger stranger(number_after("port ", command.said()));
  EXPECT_TRUE(stranger.connected());
  EXPECT_TRUE(stranger.is_turned_away());
  raise_flag();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t answer = result.out.find("answered");
  EXPECT_NE(result.out.find("answered", answer + 1), std::string::npos) << result.out;
  EXPECT_TRUE(has(result, "that is no part of the job")) << result.err;
}

TEST_F(Strangers, TheStoresOwnPortHearsNobodyElse) {
  // In a process of its own: a store has threads.
  testing::Child child({}, [] {
    launching::GuardedStore guarded;
    const int port = group::own_address(guarded.fds()[0]).port();
    const auto store = guarded.serve("run");
    // More than the filter mentions at a time.
    std::vector<int> own;
    for (int i = 0; i < 200; ++i) {
      own.push_back(guarded.connect());
      pollfd ready{own.back(), POLLOUT, 0};
      if (own.back() < 0 || poll(&ready, 1, 10'000) != 1 || (ready.revents & POLLERR))
        throw std::runtime_error("our own connection does not get through");
    }
    if (Stranger(port).connected()) throw std::runtime_error("a stranger got through");
    for (int connection : own) guarded.disconnect(connection);
    if (Stranger(port).connected()) throw std::runtime_error("a stranger got through");
  });
  testing::expect_outcome(child.finish(), 0, {});
}

TEST_F(Strangers, WhenTheLauncherCannotCarryConnectionsTheJobEndsWithTheCause) {
  Command command(
      brigade_run({"bash", "-c",
                   "echo up; until test -e " + flag() +
                       "; do sleep 0.05; done; "
                       "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT; sleep 600"}),
      options_);
  ASSERT_TRUE(command.wait_for_output("up"));
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  ASSERT_EQ(prlimit(command.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  raise_flag();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(has(result, "cannot pass connections on to the store any more"))
      << result.err;
  EXPECT_TRUE(has(result, "Too many open files (see ulimit -n)")) << result.err;
}

// The ports that a process listens on.
std::set<int> listening_ports(int pid) {
  std::set<std::string> sockets;
  const std::string process = "/proc/" + std::to_string(pid);
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    sockets.insert(std::filesystem::read_symlink(entry, gone).string());
  }
  std::set<int> ports;
  std::ifstream table(process + "/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retries >> user >>
        timeout >> inode;
    if (state == "0A" && sockets.contains("socket:[" + inode + "]"))
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

TEST_F(Strangers, NoiseAndSilenceAtAWorkersPortDoNoHarm) {
  Command command(brigade_run({"-n", "2", worker_, "wait", flag()}), options_);
  ASSERT_TRUE(command.wait_for_output("[0] pid "));
  ASSERT_TRUE(command.wait_for_output("[1] pid "));
  ASSERT_TRUE(command.wait_for_output("\n"));
  std::list<Stranger> strangers;
  for (const char* name : {"[0] pid ", "[1] pid "}) {
    const auto ports = listening_ports(number_after(name, command.said()));
    ASSERT_FALSE(ports.empty());
    for (int port : ports) {
      for (const size_t length : {0, 1, 7, 8, 100, 60'000}) {
        strangers.emplace_back(port);
        EXPECT_TRUE(strangers.back().connected());
        strangers.back().say(std::string(length, static_cast<char>(length)));
      }
      const Stranger half_open(port);
    }
  }
  raise_flag();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // 3, summed over two ranks twice.
  EXPECT_NE(result.out.find("[0] then 12"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("[1] then 12"), std::string::npos) << result.out;
}

class StrangersToTwoHosts : public TwoHosts {};

TEST_F(StrangersToTwoHosts, WithASecretOnePortIsOpenAndWorkersUseTheNetworkBetweenThem) {
  const TemporaryFolder folder;
  options_.environment["BRIGADE_SECRET"] = "one secret of all hosts";
  const std::string worker = testing::built_program("launch_worker");
  const std::string flag = folder.path() + "/go";
  auto first = host(0, {"-n", "2", worker, "wait", flag});
  auto second = host(1, {"-n", "2", worker, "wait", flag});
  for (Command* command : {first.get(), second.get()}) {
    ASSERT_TRUE(command->wait_for_output(command == first.get() ? "[1] pid " : "[3] pid "));
  }
  // Besides those of the workers themselves, which the kernel chose.
  const CommandResult open = run_command({"ip", "netns", "exec", left_, "bash", "-c",
                                          "ss -Hltn | grep -v 127.0.0.1 | grep -c :29500"});
  std::ofstream(flag) << "go";
  EXPECT_EQ(open.out, "1\n");
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(has(result, "brigade: ")) << result.err;
    EXPECT_FALSE(has(result, "brigade run: ")) << result.err;
    EXPECT_FALSE(has(result, "frame #")) << result.err;
    EXPECT_NE(result.out.find("sum 10 restarts 0"), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace brigade
