#include "group/environment.h"

#include <gtest/gtest.h>

#include "brigade/error.h"

namespace brigade::group {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup in(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// The text of the ConfigError that `body` throws.
template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(nothing was refused)";
}

TEST(Environment, AloneIsAGroupOfOne) {
  Environment found = read_environment(in({}));
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.world_size, 1);
  EXPECT_EQ(found.source, "none");
}

TEST(Environment, UnderstandsTorchrun) {
  Lookup lookup = in({{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"},
                      {"MASTER_ADDR", "node0"},
                      {"MASTER_PORT", "29501"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "1"}});
  Environment found = read_environment(lookup);
  EXPECT_EQ(found.source, "torchrun");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_world_size, 4);
  EXPECT_EQ(found.node, 1);
  EXPECT_TRUE(found.agent_store);
  EXPECT_EQ(found.restart_count, 2);
  EXPECT_FALSE(found.single_host());
  Master master = read_master(lookup, found);
  EXPECT_EQ(master.host, "node0");
  EXPECT_EQ(master.port, 29501);
}

TEST(Environment, UnderstandsSlurm) {
  Lookup lookup = in({{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "7"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_TASKS_PER_NODE", "4,3"},
                      {"SLURM_JOB_NODELIST", "gpu[07-08]"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                      {"SLURM_JOB_ID", "4711"}});
  Environment found = read_environment(lookup);
  EXPECT_EQ(found.source, "SLURM");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 7);
  EXPECT_EQ(found.node, 1);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_world_size, 3);
  Master master = read_master(lookup, found);
  EXPECT_EQ(master.host, "gpu07");
  EXPECT_GE(master.port, 15000);
  EXPECT_LT(master.port, 32768);
}

TEST(Environment, ASlurmBatchScriptWithoutSrunIsAlone) {
  EXPECT_EQ(read_environment(in({{"SLURM_NTASKS", "8"}})).world_size, 1);
}

TEST(Environment, SlurmWithoutANodeListMeetsAtTheLaunchingNode) {
  Lookup lookup = in({{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                      {"SLURM_JOB_ID", "1"}});
  EXPECT_EQ(read_master(lookup, read_environment(lookup)).host, "10.0.0.1");
}

TEST(Environment, SlurmJobsGetDifferentPorts) {
  auto port = [](const char* job) {
    return read_master(in({{"MASTER_ADDR", "a"}, {"SLURM_JOB_ID", job}}), {}).port;
  };
  EXPECT_NE(port("100"), port("101"));
  EXPECT_EQ(port("100"), port("100"));
}

TEST(Environment, UnderstandsOpenMpiAndPmi) {
  Lookup mpi = in({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_NAMESPACE", "prterun-host-1234@1"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "9"}});
  Environment found = read_environment(mpi);
  EXPECT_EQ(found.source, "Open MPI");
  EXPECT_EQ(found.rank, 1);
  EXPECT_TRUE(found.single_host());
  EXPECT_EQ(read_master(mpi, found).host, "127.0.0.1");

  found = read_environment(in({{"PMI_RANK", "2"},
                               {"PMI_SIZE", "3"},
                               {"MPI_LOCALRANKID", "0"},
                               {"MPI_LOCALNRANKS", "1"}}));
  EXPECT_EQ(found.source, "PMI");
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.local_world_size, 1);
}

TEST(Environment, WhatIsGivenWinsOverTheVariables) {
  Lookup lookup = in({{"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_RANK", "1"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  Environment found = read_environment(lookup, 3, 4);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 4);
  EXPECT_FALSE(found.local_rank.has_value());
  EXPECT_FALSE(found.agent_store);
  EXPECT_EQ(read_environment(lookup, 1, 2).local_rank, 1);
  EXPECT_EQ(read_environment(lookup, 0, std::nullopt).world_size, 2);
}

TEST(Environment, TheTimeLimitIsInSeconds) {
  EXPECT_FALSE(read_timeout(in({})).has_value());
  EXPECT_EQ(read_timeout(in({{"BRIGADE_TIMEOUT", "2.5"}}))->count(), 2500);
  for (const char* bad : {"", "0", "-1", "1x", "nan", "inf", "1e30", " 1"}) {
    EXPECT_NE(refusal([&] {
                read_timeout(in({{"BRIGADE_TIMEOUT", bad}}));
              }).find("BRIGADE_TIMEOUT='" + std::string(bad) + "'"),
              std::string::npos);
  }
}

struct BadCase {
  const char* name;
  Variables variables;
  std::vector<std::string> said;  // must be in the one line
};

Variables torchrun_with(const Variables& changes) {
  Variables all{{"RANK", "1"},
                {"WORLD_SIZE", "2"},
                {"LOCAL_RANK", "1"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : changes) {
    if (value == "(unset)") {
      all.erase(name);
    } else {
      all[name] = value;
    }
  }
  return all;
}

std::vector<BadCase> bad_cases() {
  std::vector<BadCase> cases;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
    for (const char* value : {"", "1x", " 1", "1 ", "-1", "+1", "0x1", "1.0", "one",
                              "9223372036854775808", "4294967297"}) {
      cases.push_back({name,
                       torchrun_with({{name, value}}),
                       {std::string(name) + "='" + value + "'", "expected"}});
    }
  }
  cases.push_back(
      {"size 0", torchrun_with({{"WORLD_SIZE", "0"}}), {"WORLD_SIZE='0'", "at least 1"}});
  cases.push_back(
      {"port 0", torchrun_with({{"MASTER_PORT", "0"}}), {"MASTER_PORT='0'", "65535"}});
  cases.push_back(
      {"port", torchrun_with({{"MASTER_PORT", "65536"}}), {"MASTER_PORT='65536'"}});
  cases.push_back(
      {"rank = size", torchrun_with({{"RANK", "2"}}), {"rank 2", "world of 2", "0 to 1"}});
  cases.push_back(
      {"local rank", torchrun_with({{"LOCAL_RANK", "2"}}), {"local rank 2", "0 to 1"}});
  cases.push_back({"local size",
                   torchrun_with({{"LOCAL_WORLD_SIZE", "3"}}),
                   {"3 ranks on this host", "world of 2"}});
  cases.push_back({"no size",
                   torchrun_with({{"WORLD_SIZE", "(unset)"}}),
                   {"WORLD_SIZE is not set", "RANK='1'"}});
  cases.push_back({"no rank",
                   torchrun_with({{"RANK", "(unset)"}}),
                   {"RANK is not set", "WORLD_SIZE='2'"}});
  cases.push_back(
      {"no address",
       torchrun_with(
           {{"MASTER_ADDR", "(unset)"}, {"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}),
       {"MASTER_ADDR is not set"}});
  cases.push_back(
      {"no port", torchrun_with({{"MASTER_PORT", "(unset)"}}), {"MASTER_PORT is not set"}});
  cases.push_back(
      {"empty address", torchrun_with({{"MASTER_ADDR", ""}}), {"MASTER_ADDR=''"}});
  cases.push_back(
      {"address", torchrun_with({{"MASTER_ADDR", "a b"}}), {"MASTER_ADDR='a b'"}});
  cases.push_back({"agent",
                   torchrun_with({{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}}),
                   {"TORCHELASTIC_USE_AGENT_STORE='maybe'"}});
  cases.push_back({"restarts",
                   torchrun_with({{"TORCHELASTIC_RESTART_COUNT", "-1"}}),
                   {"TORCHELASTIC_RESTART_COUNT='-1'"}});
  cases.push_back(
      {"slurm", {{"SLURM_PROCID", "x"}, {"SLURM_NTASKS", "2"}}, {"SLURM_PROCID='x'"}});
  cases.push_back(
      {"slurm", {{"SLURM_PROCID", "0"}}, {"SLURM_NTASKS is not set", "SLURM_PROCID='0'"}});
  cases.push_back(
      {"slurm",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "2(x"}},
       {"SLURM_TASKS_PER_NODE='2(x'"}});
  cases.push_back({"slurm",
                   {{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_JOB_NODELIST", "a[1"},
                    {"SLURM_JOB_ID", "1"}},
                   {"SLURM_JOB_NODELIST='a[1'"}});
  cases.push_back({"mpi",
                   {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
                   {"rank 3", "Open MPI"}});
  return cases;
}

TEST(Environment, RefusesWhatIsMalformedInOneLineThatNamesIt) {
  for (const BadCase& bad : bad_cases()) {
    std::string text = refusal([&] {
      Lookup lookup = in(bad.variables);
      read_master(lookup, read_environment(lookup));
    });
    for (const std::string& part : bad.said) {
      EXPECT_NE(text.find(part), std::string::npos) << bad.name << ": '" << text << "'";
    }
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(Environment, RefusesBadOptions) {
  EXPECT_NE(refusal([] { read_environment(in({}), -1, 2); }).find("rank='-1'"),
            std::string::npos);
  EXPECT_NE(refusal([] { read_environment(in({}), 0, 0); }).find("world_size='0'"),
            std::string::npos);
  EXPECT_NE(refusal([] { read_environment(in({}), 2, 2); }).find("0 to 1"),
            std::string::npos);
  EXPECT_NE(
      refusal([] { read_environment(in({}), 0, std::nullopt); }).find("without world_size"),
      std::string::npos);
}

TEST(Environment, ReadsSlurmNodeLists) {
  EXPECT_EQ(first_host("V", "host"), "host");
  EXPECT_EQ(first_host("V", "a,b"), "a");
  EXPECT_EQ(first_host("V", "node[003-006,010],other"), "node003");
  EXPECT_EQ(first_host("V", "rack[2,4]-n[10-12]"), "rack2-n10");
  EXPECT_EQ(first_host("V", "n[7].cluster.org"), "n7.cluster.org");
  for (const char* bad : {"", ",a", "a[", "a[]", "a[1", "a]"}) {
    EXPECT_NE(refusal([&] { first_host("V", bad); }).find("V='"), std::string::npos) << bad;
  }
}

TEST(Environment, ReadsSlurmTaskCounts) {
  EXPECT_EQ(tasks_on_node("V", "4", std::nullopt), 4);
  EXPECT_EQ(tasks_on_node("V", "4(x2)", std::nullopt), 4);
  EXPECT_EQ(tasks_on_node("V", "4(x2),3", 1), 4);
  EXPECT_EQ(tasks_on_node("V", "4(x2),3", 2), 3);
  EXPECT_EQ(tasks_on_node("V", "4(x2),3", 3), std::nullopt);
  EXPECT_EQ(tasks_on_node("V", "4(x2),3", std::nullopt), std::nullopt);
  for (const char* bad : {"", "x", "4(", "4(x)", "4(x2", "4,", "-1", "4(x0)"}) {
    EXPECT_NE(refusal([&] { tasks_on_node("V", bad, 0); }).find("V='"), std::string::npos)
        << bad;
  }
}

}  // namespace
}  // namespace brigade::group
