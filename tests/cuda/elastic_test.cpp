// Elastic training over NCCL: a rank dies, the others abort their communicators and make
// new ones. The ranks share one GPU. Skipped without one.
#include <gtest/gtest.h>

#include <filesystem>

#include "elastic/outcome.h"

namespace brigade {
namespace {

// NCCL then takes the ranks for ranks of different hosts.
constexpr const char* kOnOneGpu =
    "#!/bin/sh\nexport NCCL_HOSTID=host$BRIGADE_ELASTIC_WORKER NCCL_SOCKET_IFNAME=lo "
    "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1\nexec ";

Outcome train_on_gpu(const std::vector<std::string>& launcher, const std::string& trainer) {
  const testing::TemporaryFolder folder;
  const std::string script =
      folder.script("train", kOnOneGpu + testing::built_program("elastic_trainer") + " " +
                                 folder.path() + " device=cuda " + trainer + "\n");
  std::vector<std::string> words{testing::built_program("brigade"), "run", "--elastic"};
  words.insert(words.end(), launcher.begin(), launcher.end());
  words.push_back(script);
  const CommandResult result = testing::run_command(
      words, {.environment = {{"OMP_NUM_THREADS", "1"}, {"BRIGADE_TIMEOUT", "30"}},
              .wall = std::chrono::seconds(120)});
  return outcome_of(result, folder.path());
}

bool has_gpu() { return std::filesystem::exists("/dev/nvidiactl"); }

TEST(ElasticOverNccl, TheSurvivorGoesOnWithoutARankThatDies) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU on this machine";
  for (const std::string where : {"forward", "apply"}) {
    SCOPED_TRACE(where);
    const Outcome outcome =
        train_on_gpu({"-n", "2"}, "kills=1 samples=60 epochs=4 at=" + where + ":6:1");
    expect_good_end(outcome, 1);
    EXPECT_EQ(outcome.deaths.size(), 1U);
  }
}

TEST(ElasticOverNccl, SurvivorsMakeNewCommunicatorsWithAReplacement) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU on this machine";
  // PowerSGD's state is on the device, but a newcomer's is not at first.
  for (const std::string hook : {"none", "powersgd:rank=2,min_rate=0.1,start=2"}) {
    SCOPED_TRACE(hook);
    const Outcome outcome = train_on_gpu(
        {"-n", "3", "--replace", "--grace", "60000"},
        "kills=1 samples=64 epochs=20 pause_ms=2 at=backward:6:1 hook=" + hook);
    expect_good_end(outcome, 3);
    EXPECT_EQ(outcome.deaths.size(), 1U);
  }
}

// Some die while NCCL connects the others.
TEST(ElasticOverNccl, RandomKillsAreSurvived) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU on this machine";
  const Outcome outcome =
      train_on_gpu({"-n", "3", "--replace", "--max-restarts", "40"},
                   "kills=3 mean_ms=6000 samples=64 epochs=120 pause_ms=2 "
                   "hook=powersgd:rank=2,min_rate=0.1,start=10");
  expect_good_end(outcome, 3);
  EXPECT_GE(outcome.deaths.size(), 1U);
}

}  // namespace
}  // namespace brigade
