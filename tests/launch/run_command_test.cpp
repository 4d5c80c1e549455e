// brigade run, as a user starts it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "launch/brigade_run.h"

namespace brigade {
namespace {

using testing::TemporaryFolder;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A text in the command line of every process that a test starts, and nowhere else.
std::string tag(const std::string& name) { return name + "_" + std::to_string(getpid()); }

TEST(RunCommand, SetsTorchrunsVariables) {
  const auto result = run(
      {"-n", "2", "--max-restarts", "3", "--rdzv-id", "job7", "bash", "-c",
       "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
       "$ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} "
       "$TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT "
       "$TORCHELASTIC_MAX_RESTARTS ${TORCHELASTIC_ERROR_FILE:+file}"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.sorted_lines(),
            (Lines{"[0] 0 0 2 2 0 1 0 2 127.0.0.1 port True job7 0 3 file",
                   "[1] 1 1 2 2 0 1 1 2 127.0.0.1 port True job7 0 3 file"}));
}

TEST(RunCommand, SharesTheCoresAndSaysSoInOneLine) {
  const auto unset = run({"-n", "2", "bash", "-c", "echo $OMP_NUM_THREADS"},
                         {.environment = {{"OMP_NUM_THREADS", ""}}});
  std::smatch match;
  const std::regex line("brigade run: OMP_NUM_THREADS=([0-9]+) for each of 2 workers.*\n");
  ASSERT_TRUE(std::regex_match(unset.err, match, line)) << unset.err;
  EXPECT_EQ(unset.sorted_lines(),
            (Lines{"[0] " + match[1].str(), "[1] " + match[1].str()}));
  const auto set = run({"bash", "-c", "echo $OMP_NUM_THREADS"},
                       {.environment = {{"OMP_NUM_THREADS", "7"}}});
  EXPECT_EQ(set.out, "[0] 7\n");
  EXPECT_EQ(set.err, "");
}

TEST(RunCommand, LinesAreWholePrefixedAndKeptApart) {
  const auto result =
      run({"-n", "3", "bash", "-c",
           "for i in $(seq 200); do printf 'a%s' $RANK; printf 'b%s\\n' $RANK; "
           "done; printf 'end%s' $RANK"});
  EXPECT_EQ(result.exit_code, 0);
  Lines expected;
  for (const char* rank : {"0", "1", "2"}) {
    const std::string prefix = std::string("[") + rank + "] ";
    for (int i = 0; i < 200; ++i) expected.push_back(prefix + "a" + rank + "b" + rank);
    expected.push_back(prefix + "end" + rank);
  }
  EXPECT_EQ(result.sorted_lines(), expected);
}

TEST(RunCommand, NoColoursOutsideATerminalAndWithNO_COLOR) {
  EXPECT_EQ(run({"echo", "x"}).out, "[0] x\n");
  const std::string line = testing::built_program("brigade") + " run echo x";
  // script(1) gives it a terminal.
  const std::vector<std::string> in_terminal{"script", "-qec", line, "/dev/null"};
  const auto coloured =
      run_command(in_terminal, {.environment = {{"TERM", "xterm"}, {"NO_COLOR", ""}}});
  if (coloured.exit_code == 99) GTEST_SKIP() << "there is no script(1) here";
  EXPECT_NE(coloured.out.find("\033[36m[0]\033[0m x"), std::string::npos) << coloured.out;
  const auto plain =
      run_command(in_terminal, {.environment = {{"TERM", "xterm"}, {"NO_COLOR", "1"}}});
  EXPECT_EQ(plain.out.find('\033'), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("[0] x"), std::string::npos) << plain.out;
}

TEST(RunCommand, StdinGoesToTheFirstWorkerOnly) {
  const auto result = run({"-n", "2", "cat"}, {.stdin_text = "words\n"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[0] words\n");
}

TEST(RunCommand, AFailingWorkerIsReportedAndItsExitCodeIsOurs) {
  const auto result =
      run({"-n", "3", "bash", "-c",
           "test $RANK = 2 || exec sleep 600; echo first; echo oops >&2; exit 7"});
  EXPECT_EQ(result.exit_code, 7);
  for (const char* part : {"brigade run: rank 2 failed: exit code 7\n", "local rank 2",
                           "host ", "pid ", "  | oops", "rank 0 ended by SIGTERM"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in\n"
                                                        << result.err;
  }
}

TEST(RunCommand, ASignalGives128PlusItsNumber) {
  const auto result =
      run({"-n", "2", "bash", "-c", "test $RANK = 1 || exec sleep 600; kill -9 $$"});
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_NE(result.err.find("rank 1 failed: signal SIGKILL"), std::string::npos)
      << result.err;
}

TEST(RunCommand, TheErrorFilesMessageIsShown) {
  const auto result =
      run({"bash", "-c",
           "echo '{\"message\":{\"message\":\"ValueError: bad batch\",\"extraInfo\":"
           "{\"timestamp\":\"1\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("ValueError: bad batch"), std::string::npos) << result.err;
}

TEST(RunCommand, AWorkersChildrenEndWithTheJob) {
  const std::string name = tag("children");
  // One child stays in the worker's group, one leaves it, one ignores SIGTERM.
  const auto result =
      run({"-n", "2", "bash", "-c",
           "bash -c 'sleep 600; : " + name + "' & setsid bash -c 'sleep 600; : " + name +
               "' & bash -c 'trap \"\" TERM; sleep 600; sleep 600; : " + name +
               "' & sleep 0.3; exit $RANK"},
          {.environment = {{"BRIGADE_GRACE", "0.5"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(none_left(name));
}

TEST(RunCommand, ChildrenLeftBehindByGoodWorkersEndToo) {
  const std::string name = tag("daemons");
  const auto result = run({"bash", "-c", "bash -c 'sleep 600; : " + name + "' & exit 0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(none_left(name));
}

TEST(RunCommand, NoOrphanSurvivesTheLaunchersSIGKILL) {
  const std::string name = tag("orphans");
  TemporaryFolder folder;
  Command command(brigade_run({"-n", "2", "bash", "-c",
                               "bash -c 'trap \"\" TERM; sleep 600; : " + name +
                                   "' & setsid bash -c 'sleep 600; : " + name +
                                   "' & echo up; trap '' TERM HUP; sleep 600; : " + name}),
                  {.environment = {{"TMPDIR", folder.path()}}});
  ASSERT_TRUE(command.wait_for_output("[0] up"));
  ASSERT_TRUE(command.wait_for_output("[1] up"));
  command.signal(SIGKILL);
  EXPECT_EQ(command.finish().exit_code, 137);
  EXPECT_TRUE(none_left(name));
  EXPECT_TRUE(none_left(folder.path())) << "the watcher is left";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the temporary folder is left";
}

class RunCommandSignals : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, RunCommandSignals,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_P(RunCommandSignals, ArePassedOnAndEndTheJobWith128PlusTheNumber) {
  const std::string number = std::to_string(GetParam());
  Command command(brigade_run({"-n", "2", "bash", "-c",
                               "trap 'echo got " + number + "; exit 0' " + number +
                                   "; echo up; while :; do sleep 0.05; done"}));
  ASSERT_TRUE(command.wait_for_output("[0] up"));
  ASSERT_TRUE(command.wait_for_output("[1] up"));
  command.signal(GetParam());
  const auto result = command.finish();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  for (const char* rank : {"[0] got ", "[1] got "}) {
    EXPECT_NE(result.out.find(rank + number), std::string::npos) << result.out;
  }
  EXPECT_NE(result.err.find("interrupted by SIG"), std::string::npos);
}

TEST_P(RunCommandSignals, AreFollowedBySIGKILLWhenWorkersDoNotCare) {
  const std::string name = tag("deaf");
  Command command(
      brigade_run({"bash", "-c",
                   "trap '' INT TERM HUP; echo up; while :; do sleep 1; done; : " + name}),
      {.environment = {{"BRIGADE_GRACE", "0.3"}}});
  ASSERT_TRUE(command.wait_for_output("up"));
  command.signal(GetParam());
  EXPECT_EQ(command.finish().exit_code, 128 + GetParam());
  EXPECT_TRUE(none_left(name));
}

TEST(RunCommand, ASecondCtrlCKillsAtOnce) {
  Command command(brigade_run({"bash", "-c",
                               "trap 'echo once' INT; trap '' TERM; echo up; while "
                               ":; do sleep 0.05; done"}),
                  {.environment = {{"BRIGADE_GRACE", "600"}}});
  ASSERT_TRUE(command.wait_for_output("up"));
  command.signal(SIGINT);
  ASSERT_TRUE(command.wait_for_output("once"));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
}

TEST(RunCommand, AClosedPipeEndsTheJobAsItEndsAnyProgram) {
  const std::string line = testing::built_program("brigade") + " run -n 2 yes | head -n 1";
  const auto result = run_command({"bash", "-c", line + "; echo ${PIPESTATUS[0]}"});
  EXPECT_NE(result.out.find("\n141\n"), std::string::npos) << result.out << result.err;
}

TEST(RunCommand, RestartsUntilItWorks) {
  const auto result =
      run({"-n", "2", "--max-restarts=2", "bash", "-c",
           "echo $RANK try $TORCHELASTIC_RESTART_COUNT; "
           "test $TORCHELASTIC_RESTART_COUNT = 2 || { test $RANK = 1 && exit 5; "
           "sleep 600; }"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("rank 1 failed: exit code 5; restart 1 of 2"),
            std::string::npos);
  EXPECT_NE(result.err.find("restart 2 of 2"), std::string::npos);
  EXPECT_NE(result.out.find("0 try 2"), std::string::npos) << result.out;
}

// The path of the only job folder in a log folder.
std::string job_folder(const TemporaryFolder& folder) {
  return std::filesystem::directory_iterator(folder.path())->path();
}

TEST(RunCommand, RedirectsGoToFilesOnlyAndTheReportNamesThem) {
  TemporaryFolder folder;
  // Rank 1 fails after rank 0 has written.
  const auto result =
      run({"-n", "2", "--log_dir", folder.path(), "--redirects", "3", "bash", "-c",
           "echo out $RANK; echo err $RANK >&2; until test -s "
           "$(dirname $TORCHELASTIC_ERROR_FILE)/../0/stdout.log; do sleep 0.01; done; exit "
           "$RANK"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  const std::string logs = job_folder(folder) + "/attempt_0/";
  EXPECT_EQ(read_file(logs + "0/stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(logs + "1/stderr.log"), "err 1\n");
  EXPECT_NE(result.err.find("  | err 1"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("logs in " + logs + "1"), std::string::npos) << result.err;
}

TEST(RunCommand, TeeGoesToBothAndMayNameRanks) {
  TemporaryFolder folder;
  const auto result = run({"-n", "2", "--log-dir", folder.path(), "--tee", "0:1,1:2",
                           "bash", "-c", "echo out $RANK; echo err $RANK >&2"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.sorted_lines(), (Lines{"[0] out 0", "[1] out 1"}));
  EXPECT_NE(result.err.find("[1] err 1"), std::string::npos);
  const std::string logs = job_folder(folder) + "/attempt_0/";
  EXPECT_EQ(read_file(logs + "0/stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(logs + "1/stderr.log"), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(logs + "0/stderr.log"));
}

TEST(RunCommand, TheFilterShowsOnlySomeLocalRanks) {
  const auto result =
      run({"-n", "3", "--local_ranks_filter=0,2", "bash", "-c", "echo $RANK"});
  EXPECT_EQ(result.sorted_lines(), (Lines{"[0] 0", "[2] 2"}));
}

struct BadUse {
  const char* name;
  std::vector<std::string> arguments;
  int exit_code;
  const char* says;
};
class RunCommandBadUse : public ::testing::TestWithParam<BadUse> {};
INSTANTIATE_TEST_SUITE_P(
    Uses, RunCommandBadUse,
    ::testing::Values(
        BadUse{"NoProgram", {"-n", "2"}, 2, "no PROGRAM"},
        BadUse{"UnknownOption", {"--frobnicate", "true"}, 2, "unknown option --frobnicate"},
        BadUse{"RemovedOption",
               {"--metrics-port=9400", "true"},
               2,
               "unknown option --metrics-port: follow a training in TensorBoard"},
        BadUse{"RemovedSecret",
               {"--secret", "file", "true"},
               2,
               "unknown option --secret: launchers do not admit each other by a secret"},
        BadUse{"WorkersWord", {"-n", "two", "true"}, 2, "--nproc-per-node is 'two'"},
        BadUse{"WorkersNone", {"-n", "0", "true"}, 2, "--nproc-per-node is '0'"},
        BadUse{"WorkersNegative", {"-n", "-3", "true"}, 2, "--nproc-per-node is '-3'"},
        BadUse{
            "WorkersHuge", {"-n", "99999999999999999999", "true"}, 2, "--nproc-per-node"},
        BadUse{"NodeRankBeyond", {"--node-rank", "1", "true"}, 2, "node rank is 1"},
        BadUse{"NodeRankWord", {"--node-rank", "x", "true"}, 2, "--node-rank"},
        BadUse{"NodesWithoutMaster", {"--nnodes", "2", "true"}, 2, "--master-addr"},
        BadUse{"NodesRange", {"--nnodes", "1:4", "true"}, 2, "--nnodes is '1:4'"},
        BadUse{"PortBeyond", {"--master-port", "65536", "true"}, 2, "--master-port"},
        BadUse{"Redirects", {"--redirects", "4", "true"}, 2, "--redirects is '4'"},
        BadUse{"Tee", {"--tee", "0:1,x:2", "true"}, 2, "--tee"},
        BadUse{"Filter", {"--local-ranks-filter", "1", "true"}, 2, "local ranks"},
        BadUse{"LogDir", {"--log-dir", "/proc/x", "true"}, 2, "/proc/x"},
        BadUse{"Gpu", {"-n", "gpu", "--nnodes", "x", "true"}, 2, "--nnodes is 'x'"},
        BadUse{"MasterName",
               {"--master-addr", "no.such.host.invalid", "true"},
               1,
               "cannot find the host 'no.such.host.invalid'"},
        BadUse{"NoSuchProgram", {"no-such-program-here"}, 127, "no folder of PATH has it"},
        BadUse{"NoSuchPath", {"./no/such/program"}, 127, "no such program"},
        BadUse{"NoSuchScript", {"no_such_script.py"}, 127, "no such script"},
        BadUse{"NotExecutable", {"/etc/passwd"}, 126, "not executable"}),
    [](const auto& info) { return info.param.name; });

TEST_P(RunCommandBadUse, ExitsWithOneClearLine) {
  const auto result =
      run(GetParam().arguments, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(result.exit_code, GetParam().exit_code);
  EXPECT_NE(result.err.find(GetParam().says), std::string::npos) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

TEST(RunCommand, ASecretOfAnEarlierVersionIsNoSilentLoss) {
  CommandOptions options{.environment = {{"BRIGADE_SECRET", "of all hosts"}}};
  const auto result = run({"--nnodes", "2", "--master-addr", "127.0.0.1", "true"}, options);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("BRIGADE_SECRET is set, and means nothing"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.find("of all hosts"), std::string::npos) << result.err;
}

TEST(RunCommand, APortInUseIsNamed) {
  Command holder(brigade_run({"bash", "-c", "echo port $MASTER_PORT.; sleep 600"}));
  ASSERT_TRUE(holder.wait_for_output("."));
  std::smatch match;
  ASSERT_TRUE(std::regex_search(holder.said(), match, std::regex("port ([0-9]+)\\.")));
  const auto result = run({"--master-port", match[1].str(), "true"},
                          {.environment = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("127.0.0.1:" + match[1].str()), std::string::npos)
      << result.err;
}

TEST(RunCommand, TorchsOwnWarningsDoNotPushTheCauseOutOfTheReport) {
  const auto result = run(
      {"bash", "-c",
       "echo the cause >&2; for i in $(seq 40); do echo \"[W1116 06:29:55.453184886 "
       "socket.cpp:752] [c10d] noise $i\" >&2; echo \"[rank0]:[W1116 06:29:55.453184886 "
       "x.cpp:1] noise\" >&2; echo 'frame #3: c10d::send + 0x1' >&2; done; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("\n  | the cause\n"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("| [W1116"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("| [rank0]"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("| frame"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("[0] [W1116"), std::string::npos) << "it is shown as it comes";
}

TEST(RunCommand, TheTimeLimitHasOneRangeForLauncherAndWorkers) {
  const auto with = [](const std::string& limit) {
    return run({"true"},
               {.environment = {{"OMP_NUM_THREADS", "1"}, {"BRIGADE_TIMEOUT", limit}}});
  };
  EXPECT_EQ(with("100000").exit_code, 0);
  const auto zero = with("0");
  EXPECT_EQ(zero.exit_code, 2);
  EXPECT_EQ(zero.err,
            "brigade run: BRIGADE_TIMEOUT='0': expected seconds, from 0.001 to 10000000\n");
}

TEST(RunCommand, TooFewDescriptorsAreAnErrorAndNoHang) {
  for (const int limit : {6, 12, 15, 18, 21, 24, 40}) {
    const auto result = run_command(
        {"bash", "-c",
         "ulimit -n " + std::to_string(limit) + "; exec " +
             testing::built_program("brigade") + " run -n 2 true"},
        {.environment = {{"OMP_NUM_THREADS", "1"}}, .wall = std::chrono::seconds(40)});
    if (result.exit_code == 0 && limit > 24) continue;
    EXPECT_NE(result.exit_code, 124) << "hangs with " << limit;
    EXPECT_NE(result.exit_code, 0) << limit;
    EXPECT_FALSE(result.err.empty()) << limit;
    if (limit < 15) continue;  // the program may not even load
    EXPECT_EQ(result.exit_code, 1) << limit;
    const bool told = result.err.find("descriptors") != std::string::npos ||
                      result.err.find("Too many open files") != std::string::npos;
    EXPECT_TRUE(told) << limit << ": " << result.err;
  }
}

TEST(RunCommand, TheWatchingProcessMayBeStoppedOrKilled) {
  // Finds the launcher's own children by that name.
  const std::string find =
      "for p in $(cat /proc/$PPID/task/$PPID/children); do grep -q brigade-watch "
      "/proc/$p/comm && kill -$0 $p; done; true";
  for (const char* signal : {"KILL", "STOP"}) {
    TemporaryFolder folder;
    const auto result =
        run({"bash", "-c", find, signal},
            {.environment = {{"OMP_NUM_THREADS", "1"}, {"TMPDIR", folder.path()}},
             .wall = std::chrono::seconds(30)});
    EXPECT_EQ(result.exit_code, 0) << signal << ": " << result.err;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << signal;
    const bool told =
        result.err.find("brigade-watch, was ended by SIGKILL") != std::string::npos;
    EXPECT_EQ(told, signal == std::string("KILL")) << result.err;
  }
}

TEST(RunCommand, AcceptsASeparatorAndLeavesTheProgramsOptionsAlone) {
  const auto result = run({"-n", "1", "--", "echo", "-n", "--", "--help"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[0] -- --help\n");
}

TEST(RunCommand, TakesOptionsFromTheEnvironmentAsTorchrunDoes) {
  const auto result = run({"echo", "x"}, {.environment = {{"PET_NPROC_PER_NODE", "3"}}});
  EXPECT_EQ(result.sorted_lines().size(), 3U);
}

TEST(RunCommand, HelpAndVersion) {
  const std::string brigade = testing::built_program("brigade");
  EXPECT_NE(run_command({brigade}).out.find("run"), std::string::npos);
  EXPECT_EQ(run_command({brigade, "--version"}).out.rfind("brigade ", 0), 0U);
  const auto help = run_command({brigade, "run", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("brigade run -n 2 ./train"), std::string::npos);
  EXPECT_EQ(run_command({brigade, "frobnicate"}).exit_code, 2);
}

}  // namespace
}  // namespace brigade
