// brigade run on several hosts: launchers that only share an address, and real network
// namespaces where this process may make them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "launch/child.h"
#include "launch/several_nodes.h"

namespace brigade {
namespace {

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
  folder.script("fail", "");  // the failure shows on the other host at once
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
  // The error may come from either; the later one has it.
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

TEST_F(Nodes, ALauncherOfAnotherJobIsToldBothRunIdsAndDoesNoHarm) {
  const std::string worker = testing::built_program("launch_worker");
  auto first = node(0, {"--rdzv-id", "one", worker});
  const CommandResult other = node(1, {"--rdzv-id", "two", worker})->finish();
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("the launcher of node 0 at 127.0.0.1:" + port_ +
                           " has the run id 'one', and this one has 'two'"),
            std::string::npos)
      << other.err;
  // The job still waits for its own second host. Run ids that launchers invent, because
  // none was given, are not compared.
  auto second = node(1, {worker});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("sum 3"), std::string::npos) << result.out;
  }
}

TEST_F(Nodes, ALauncherThatComesToAnElasticJobIsToldSo) {
  Command first(brigade_run({"--elastic", "--nnodes", "1:2", "--master-addr", address_,
                             "--master-port", port_, "sleep", "600"}),
                options_);
  const CommandResult other = node(1, {"true"})->finish();
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("the job at 127.0.0.1:" + port_ + " is elastic"),
            std::string::npos)
      << other.err;
  first.signal(SIGTERM);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGTERM);
}

TEST_F(Nodes, TheFirstHostSaysInTheEndWhoWasRefused) {
  options_.environment["BRIGADE_TIMEOUT"] = "4";
  auto first = node(0, {"--rdzv-id", "one", "true"});
  EXPECT_EQ(node(1, {"--rdzv-id", "two", "true"})->finish().exit_code, 1);
  const CommandResult result = first->finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("node 1 did not come within 4 s; a launcher on "),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("with the run id 'two' was refused, for this job's is 'one'"),
            std::string::npos)
      << result.err;
}

TEST_F(Nodes, AWorkerAtTheStoreOfAnotherJobIsToldBothRunIdsAndDoesNoHarm) {
  const testing::TemporaryFolder folder;
  Command command(
      brigade_run({"-n", "2", "--rdzv-id", "theirs", "--master-port", port_,
                   testing::built_program("launch_worker"), "wait", folder.path() + "/go"}),
      options_);
  ASSERT_TRUE(command.wait_for_output("[1] pid "));
  testing::Variables variables{{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "127.0.0.1"},
                               {"MASTER_PORT", port_}};
  testing::Child alone(variables, [] { init_process_group(); });
  testing::expect_outcome(alone.finish(), 3,
                          {"is that of the job 'theirs', and this process is of none"});
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RUN_ID"] = "ours";
  testing::Child child(variables, [] { init_process_group(); });
  testing::expect_outcome(child.finish(), 3,
                          {"the store at 127.0.0.1:" + port_ +
                           " is that of the job "
                           "'theirs', and this process is of the job 'ours'"});
  folder.script("go", "");
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("[1] then 12"), std::string::npos) << result.out;
}

TEST_F(TwoHosts, WorkersOnBothTrainTogether) {
  const std::string worker = testing::built_program("launch_worker");
  auto second = host(1, {"-n", "2", worker});
  auto first = host(0, {"-n", "2", worker});
  const CommandResult result0 = first->finish();
  const CommandResult result1 = second->finish();
  EXPECT_EQ(result0.exit_code, 0) << result0.err;
  EXPECT_NE(result0.err.find("brigade: whoever reaches 10.77.0.1:29500 can take part in "
                             "this job or end it; on a network that others share use "
                             "WireGuard, see docs/launching.md\n"),
            std::string::npos)
      << result0.err;
  EXPECT_EQ(result1.err.find("whoever"), std::string::npos) << result1.err;
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
