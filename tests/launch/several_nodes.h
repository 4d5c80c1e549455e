// Launchers of one job on several hosts, for tests.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "launch/brigade_run.h"
#include "support/network_namespaces.h"
#include "support/reserved_port.h"

namespace brigade {

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

}  // namespace brigade
