// Elastic jobs of several hosts: network namespaces with cables between them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "elastic/outcome.h"
#include "launch/several_nodes.h"

namespace brigade {
namespace {

using testing::TemporaryFolder;

bool says(const CommandResult& result, const std::string& text) {
  return result.err.find(text) != std::string::npos;
}

// A first host with two others, each on a separate cable. The first forwards between them.
class ElasticHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = testing::why_no_network_namespaces();
    if (!why.empty()) GTEST_SKIP() << why;
    std::string make = "set -e; ";
    for (int host = 0; host < 3; ++host)
      make += "ip netns add " + name(host) + "; ip -n " + name(host) + " link set lo up; ";
    for (const std::string n : {"1", "2"}) {
      const std::string there = name(std::stoi(n));
      make += "ip -n " + name(0) + " link add cable" + n +
              " type veth peer name cable netns " + there + "; ip -n " + name(0) +
              " addr add 10.78." + n + ".1/24 dev cable" + n + "; ip -n " + there +
              " addr add 10.78." + n + ".2/24 dev cable; ip -n " + name(0) +
              " link set cable" + n + " up; ip -n " + there + " link set cable up; ip -n " +
              there + " route add default via 10.78." + n + ".1; ";
    }
    shell(make + "ip netns exec " + name(0) + " sysctl -qw net.ipv4.ip_forward=1");
    made_ = true;
  }
  void TearDown() override {
    hosts_.clear();
    for (int host = 0; made_ && host < 3; ++host)
      testing::run_command({"ip", "netns", "del", name(host)});
  }

  static std::string name(int host) {
    return "bre" + std::to_string(getpid()) + "h" + std::to_string(host);
  }
  static void shell(const std::string& line) {
    const CommandResult result = testing::run_command({"bash", "-c", line});
    ASSERT_EQ(result.exit_code, 0) << line << "\n" << result.err;
  }
  // Starts brigade run with the training on that host, with one worker.
  Command& start(int host, std::vector<std::string> options) {
    std::vector<std::string> words{
        "ip", "netns", "exec", name(host), testing::built_program("brigade"), "run"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {testing::built_program("elastic_trainer"), folder_.path()});
    words.insert(words.end(), training_.begin(), training_.end());
    hosts_.push_back(std::make_unique<Command>(words, options_));
    return *hosts_.back();
  }
  // Waits until all members of the latest generation are there, so many of them.
  bool wait_for_members(int members) const {
    for (int tries = 0; tries < 6000; ++tries) {
      const auto events = events_in(folder_.path());
      int latest = -1, count = 0, size = 0;
      for (const Event& event : events) latest = std::max(latest, event.generation);
      for (const Event& event : events) {
        if (event.generation != latest) continue;
        ++count;
        size = event.members;
      }
      if (size == members && count == members) return true;
      usleep(10'000);
    }
    return false;
  }
  // Waits until generations of these sizes have come in this order, perhaps with others
  // between.
  bool wait_for_sizes(const std::vector<int>& sizes) const {
    for (int tries = 0; tries < 3000; ++tries) {
      std::map<int, int> size_of;  // by generation
      for (const Event& event : events_in(folder_.path()))
        size_of[event.generation] = event.members;
      size_t found = 0;
      for (const auto& [generation, size] : size_of)
        if (found < sizes.size() && size == sizes[found]) ++found;
      if (found == sizes.size()) return true;
      usleep(10'000);
    }
    return false;
  }
  size_t events_so_far() const { return events_in(folder_.path()).size(); }
  // Lets the training end.
  void end_training() const { folder_.script("end", ""); }

  const TemporaryFolder folder_;
  std::vector<std::string> training_{"samples=60", "epochs=100000", "pause_ms=4",
                                     "end_file=1"};
  testing::CommandOptions options_{
      .environment = {{"OMP_NUM_THREADS", "1"}, {"BRIGADE_TIMEOUT", "20"}},
      .wall = std::chrono::seconds(200)};
  std::vector<std::unique_ptr<Command>> hosts_;
  bool made_ = false;
};

TEST_F(ElasticHosts, AHostJoinsAndItsLauncherDies) {
  Command& stranger = start(1, {"--join", "10.78.1.1", "--rdzv-id", "another"});
  // This is longer than the test waits: the other host is dropped because its workers are
  // waited for, not for its silence alone.
  options_.environment["BRIGADE_TIMEOUT"] = "150";
  Command& first = start(0, {"--elastic", "--nnodes", "1:2", "--master-addr", "10.78.1.1",
                             "--rdzv-id", "ours"});
  ASSERT_TRUE(wait_for_members(1)) << "one host is enough to begin";
  const CommandResult refused = stranger.finish();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(says(refused, "has the run id 'ours', and this one has 'another'"))
      << refused.err;
  Command& second = start(1, {"--join", "10.78.1.1:29500", "--rdzv-id", "ours"});
  ASSERT_TRUE(wait_for_members(2));
  Command& third = start(2, {"--join", "10.78.1.1"});
  const CommandResult full = third.finish();
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_TRUE(says(full, "the job has all its 2 hosts")) << full.err;
  second.signal(SIGKILL);
  ASSERT_TRUE(wait_for_members(1)) << "the others go on without it";
  Command& again = start(2, {"--join", "10.78.1.1"});
  ASSERT_TRUE(wait_for_members(2)) << "its place is free for another";
  end_training();
  const CommandResult result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(says(result, "is lost: nothing was heard of it")) << result.err;
  const CommandResult other = again.finish();
  EXPECT_EQ(other.exit_code, 0) << other.err;
  const auto mine = endings_in(result.out), theirs = endings_in(other.out);
  ASSERT_EQ(mine.size() + theirs.size(), 2U) << result.out << other.out;
  EXPECT_EQ(mine[0].hash, theirs[0].hash);
  EXPECT_EQ(mine[0].kept, mine[0].steps);
}

TEST_F(ElasticHosts, BeginsWithTheLeastNumberAndReplacesAStoppedWorkerOfAnotherHost) {
  options_.environment["BRIGADE_TIMEOUT"] = "6";
  training_.push_back("at=stop:5:1");
  Command& first =
      start(0, {"--elastic", "--nnodes", "2:3", "--master-addr", "10.78.1.1", "--replace"});
  usleep(500'000);
  Command& second = start(1, {"--elastic", "--nnodes", "2:3", "--node-rank", "1",
                              "--master-addr", "10.78.1.1"});
  ASSERT_TRUE(wait_for_sizes({2, 1, 2}))
      << "rank 1, on the other host, is silent; it is killed and replaced there";
  EXPECT_EQ(events_in(folder_.path())[0].members, 2) << "one host is not enough";
  end_training();
  CommandResult result = first.finish();
  const CommandResult other = second.finish();
  EXPECT_EQ(other.exit_code, 0) << other.err;
  result.out += other.out;
  result.err += other.err;
  expect_good_end(outcome_of(result, folder_.path()), 2, /*exact=*/false);
}

TEST_F(ElasticHosts, ACutOfALinkIsSurvivedAndAShortOneIsNotNoticed) {
  options_.environment["BRIGADE_TIMEOUT"] = "8";
  Command& first = start(0, {"--elastic", "--nnodes", "1:3", "--master-addr", "10.78.1.1"});
  Command& one_way = start(1, {"--join", "10.78.1.1"});
  options_.environment["BRIGADE_TIMEOUT"] = "100";  // still there when the others are not
  Command& down = start(2, {"--join", "10.78.1.1"});
  ASSERT_TRUE(wait_for_members(3));
  const auto before = events_so_far();
  shell("ip -n " + name(0) + " link set cable2 down; sleep 1; ip -n " + name(0) +
        " link set cable2 up; sleep 2.5");
  EXPECT_EQ(events_so_far(), before) << "healed in time: nothing happens";
  // Packets to one of them get lost, packets from it do not; the other is cut off.
  shell(
      "ip -n " + name(0) +
      " neigh replace 10.78.1.2 lladdr 02:00:00:00:00:01 dev cable1 nud permanent; ip -n " +
      name(0) + " link set cable2 down");
  ASSERT_TRUE(wait_for_members(1)) << "two hosts are lost at once";
  const CommandResult deaf = one_way.finish();
  EXPECT_EQ(deaf.exit_code, 1);
  EXPECT_TRUE(says(deaf, "has not answered for 8 s; is its host down")) << deaf.err;
  shell("ip -n " + name(0) + " link set cable2 up");
  const CommandResult back = down.finish();
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_TRUE(says(back, "the job goes on without this host")) << back.err;
  EXPECT_EQ(events_in(folder_.path()).back().members, 1) << "it was let in again";
  end_training();
  const CommandResult result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(endings_in(result.out).size(), 1U) << result.out;
}

TEST_F(ElasticHosts, AJobThatTakesNoOtherHostsSaysSo) {
  Command plain({"ip", "netns", "exec", name(0), testing::built_program("brigade"), "run",
                 "--nnodes", "2", "--node-rank", "0", "--master-addr", "10.78.1.1", "sleep",
                 "20"});
  const CommandResult result = start(1, {"--join", "10.78.1.1"}).finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(says(result, "takes no other hosts; was it started with --elastic"))
      << result.err;
  const CommandResult mixed = start(1, {"--join", "10.78.1.1", "--replace"}).finish();
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_TRUE(says(mixed, "the host that began the job decides these")) << mixed.err;
}

}  // namespace
}  // namespace brigade
