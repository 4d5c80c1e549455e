// brigade run on several hosts: launchers that only share an address, and real network
// namespaces where this process may make them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "launch/brigade_run.h"
#include "support/network_namespaces.h"
#include "support/reserved_port.h"

namespace brigade {
namespace {

// Launchers of one job, here all on this host.
class Nodes : public ::testing::Test {
 protected:
  std::unique_ptr<Command> node(int rank, std::vector<std::string> rest, int nodes = 2,
                                std::vector<std::string> before = {}) {
    std::vector<std::string> words = std::move(before);
    rest.insert(rest.begin(),
                {"--nnodes", std::to_string(nodes), "--node-rank", std::to_string(rank),
                 "--master-addr", address_, "--master-port", port_});
    for (const std::string& word : brigade_run(std::move(rest))) words.push_back(word);
    return std::make_unique<Command>(words, options_);
  }
  std::string address_ = "127.0.0.1";
  const testing::ReservedPort reserved_;
  std::string port_ = reserved_.number();
  CommandOptions options_{
      .environment = {{"BRIGADE_GRACE", "20"}, {"OMP_NUM_THREADS", "1"}}};
};

TEST_F(Nodes, RanksGoOnFromHostToHostEvenWithUnequalNumbersOfWorkers) {
  const std::string worker = testing::built_program("launch_worker");
  auto second = node(1, {"-n", "2", worker});
  auto first = node(0, {"-n", "1", worker});
  const CommandResult result0 = first->finish();
  const CommandResult result1 = second->finish();
  EXPECT_EQ(result0.exit_code, 0) << result0.err;
  EXPECT_EQ(result1.exit_code, 0) << result1.err;
  EXPECT_EQ(result0.out, "[0] rank 0 of 3 sum 6 restarts 0\n");
  EXPECT_EQ(result1.sorted_lines(),
            (std::vector<std::string>{"[1] rank 1 of 3 sum 6 restarts 0",
                                      "[2] rank 2 of 3 sum 6 restarts 0"}));
}

TEST_F(Nodes, AFailureEndsAllLaunchersAndAllShowItsCause) {
  auto first = node(0, {"-n", "1", "sleep", "600"});
  auto second = node(1, {"-n", "2", "bash", "-c",
                         "test $RANK = 2 || exec sleep 600; echo oops >&2; exit 6"});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 6);
    EXPECT_NE(result.err.find("rank 2 failed: exit code 6"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("| oops"), std::string::npos) << result.err;
  }
}

TEST_F(Nodes, ARestartStartsTheWorkersOfAllHostsAgain) {
  const std::string worker = testing::built_program("launch_worker");
  auto first = node(0, {"--max-restarts", "1", worker, "once"});
  auto second = node(1, {"--max-restarts", "1", worker, "once"});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("sum 3 restarts 1"), std::string::npos) << result.out;
  }
}

TEST_F(Nodes, TheHostOfTheStoreWaitsForTheOthersWorkers) {
  auto first = node(0, {"bash", "-c", "echo early"});
  auto second = node(1, {"bash", "-c", "echo up; read line; echo late"});
  ASSERT_TRUE(first->wait_for_output("early"));
  const CommandResult result1 = second->finish();
  EXPECT_EQ(result1.exit_code, 0) << result1.err;
  EXPECT_EQ(result1.err, "");
  EXPECT_EQ(first->finish().exit_code, 0);
}

TEST_F(Nodes, CtrlCOnOneHostEndsAll) {
  auto first = node(0, {"bash", "-c", "echo up; exec sleep 600"});
  auto second = node(1, {"bash", "-c", "echo up; exec sleep 600"});
  ASSERT_TRUE(first->wait_for_output("up"));
  ASSERT_TRUE(second->wait_for_output("up"));
  second->signal(SIGINT);
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_NE(result.err.find("interrupted by SIGINT"), std::string::npos) << result.err;
  }
}

TEST_F(Nodes, TheDeathOfTheStoresHostEndsTheOthers) {
  auto first = node(0, {"bash", "-c", "echo up; exec sleep 600"});
  auto second = node(1, {"bash", "-c", "echo up; exec sleep 600"});
  ASSERT_TRUE(first->wait_for_output("up"));
  ASSERT_TRUE(second->wait_for_output("up"));
  first->signal(SIGKILL);
  const CommandResult result = second->finish();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("the store of node 0 at 127.0.0.1"), std::string::npos)
      << result.err;
}

TEST_F(Nodes, AMissingHostIsNamedWhenTheTimeIsUp) {
  options_.environment["BRIGADE_TIMEOUT"] = "1";
  const CommandResult result = node(0, {"true"}, 3)->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("node 1, node 2 did not come within 1 s"), std::string::npos)
      << result.err;
  const CommandResult alone = node(1, {"true"}, 3)->finish();
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_NE(alone.err.find("127.0.0.1:" + port_), std::string::npos) << alone.err;
}

TEST_F(Nodes, AnAddressThatCannotBeFoundIsNamedAsSuch) {
  options_.environment["BRIGADE_TIMEOUT"] = "1";
  address_ = "no-such-host.invalid";
  const CommandResult result = node(1, {"true"})->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("cannot reach the store of node 0 at no-such-host.invalid:" +
                            port_ + " within 1 s: "),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("cannot find the host 'no-such-host.invalid'"),
            std::string::npos)
      << result.err;
}

TEST_F(Nodes, AHostThatIsLostInTrainingIsNamedAsLost) {
  options_.environment["BRIGADE_TIMEOUT"] = "2";
  const testing::TemporaryFolder folder;
  const std::string body =
      "echo up; until test -e " + folder.path() + "/fail; do sleep 0.02; done; exit 3";
  auto first = node(0, {"--max-restarts", "1", "bash", "-c", body});
  auto second = node(1, {"--max-restarts", "1", "bash", "-c", "echo up; exec sleep 600"});
  ASSERT_TRUE(first->wait_for_output("up"));
  ASSERT_TRUE(second->wait_for_output("up"));
  second->signal(SIGKILL);
  folder.script("fail", "");  // the host's death shows on the other at once
  const CommandResult result = first->finish();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("node 1 ("), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("lost"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("did not come within"), std::string::npos) << result.err;
}

TEST_F(Nodes, CtrlCWhileWaitingForTheOthersEndsAtOnce) {
  auto first = node(0, {"true"});
  usleep(700'000);
  first->signal(SIGINT);
  EXPECT_EQ(first->finish().exit_code, 130);
}

TEST_F(Nodes, ANodeRankGivenTwiceIsRefused) {
  auto first = node(0, {"bash", "-c", "exec sleep 600"}, 3);
  auto second = node(1, {"bash", "-c", "exec sleep 600"}, 3);
  auto twin = node(1, {"bash", "-c", "exec sleep 600"}, 3);
  // Whichever of the two came later.
  std::string said;
  for (int round = 0; round < 1'000 && said.empty(); ++round) {
    for (auto* command : {&second, &twin}) {
      if (!*command || !(*command)->has_ended()) continue;
      const CommandResult result = (*command)->finish();
      EXPECT_EQ(result.exit_code, 1);
      said = result.err;
    }
    usleep(50'000);
  }
  EXPECT_NE(said.find("node rank 1 is taken by a launcher on"), std::string::npos) << said;
}

// Two hosts: network namespaces with a cable between them, gone at the end.
class TwoHosts : public Nodes {
 protected:
  void SetUp() override {
    const std::string why = testing::why_no_network_namespaces();
    if (!why.empty()) GTEST_SKIP() << why;
    const std::string id = std::to_string(getpid());
    left_ = "brg" + id + "l";
    right_ = "brg" + id + "r";
    const std::string make =
        "set -e; ip netns add " + left_ + "; ip netns add " + right_ + "; ip -n " + left_ +
        " link add brg0 type veth peer name brg0 netns " + right_ + "; ip -n " + left_ +
        " addr add 10.77.0.1/24 dev brg0; ip -n " + right_ +
        " addr add 10.77.0.2/24 dev brg0; " + "for n in " + left_ + " " + right_ +
        "; do ip -n $n link set lo up; ip -n $n link set brg0 up; done";
    const CommandResult result = run_command({"bash", "-c", make});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    address_ = "10.77.0.1";
    port_ = "29500";
  }
  void TearDown() override {
    if (left_.empty()) return;
    run_command({"bash", "-c",
                 "for n in " + left_ + " " + right_ +
                     "; do ip netns pids $n 2>/dev/null | xargs -r kill -9; ip netns del "
                     "$n; done"});
  }
  std::unique_ptr<Command> host(int rank, std::vector<std::string> rest) {
    return node(rank, std::move(rest), 2, {"ip", "netns", "exec", rank ? right_ : left_});
  }
  std::string left_;
  std::string right_;
};

TEST_F(TwoHosts, WorkersOnBothTrainTogether) {
  const std::string worker = testing::built_program("launch_worker");
  auto second = host(1, {"-n", "2", worker});
  auto first = host(0, {"-n", "2", worker});
  const CommandResult result0 = first->finish();
  const CommandResult result1 = second->finish();
  EXPECT_EQ(result0.exit_code, 0) << result0.err;
  EXPECT_EQ(result1.exit_code, 0) << result1.err;
  EXPECT_EQ(result1.sorted_lines(),
            (std::vector<std::string>{"[2] rank 2 of 4 sum 10 restarts 0",
                                      "[3] rank 3 of 4 sum 10 restarts 0"}));
}

TEST_F(TwoHosts, AnExceptionOnOneIsTheCauseOnBoth) {
  const std::string worker = testing::built_program("launch_worker");
  auto first = host(0, {worker, "throw"});
  auto second = host(1, {worker, "throw"});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("rank 1 failed: exit code 1"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("\n  std::runtime_error: the worker's own words"),
              std::string::npos)
        << result.err;
  }
}

TEST_F(TwoHosts, AFailureOnOneEndsBothAndBothShowIt) {
  auto first = host(0, {"sleep", "600"});
  auto second = host(1, {"bash", "-c", "echo $MASTER_ADDR:$MASTER_PORT >&2; exit 6"});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 6);
    EXPECT_NE(result.err.find("rank 1 failed: exit code 6"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("| 10.77.0.1:29500"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace brigade
