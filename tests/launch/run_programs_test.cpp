// brigade run with programs whose workers talk to each other: ours, and Python's.
#include <gtest/gtest.h>

#include "launch/brigade_run.h"

namespace brigade {
namespace {

using testing::TemporaryFolder;

TEST(RunCommand, OurProgramsFindEachOther) {
  const auto result = run({"-n", "3", testing::built_program("launch_worker")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.sorted_lines(),
            (Lines{"[0] rank 0 of 3 sum 6 restarts 0", "[1] rank 1 of 3 sum 6 restarts 0",
                   "[2] rank 2 of 3 sum 6 restarts 0"}));
}

TEST(RunCommand, TheCauseIsShownNotItsEcho) {
  const std::string worker = testing::built_program("launch_worker");
  const auto thrown = run({"-n", "3", worker, "throw"});
  EXPECT_EQ(thrown.exit_code, 1);
  EXPECT_NE(thrown.err.find("rank 1 failed: exit code 1"), std::string::npos) << thrown.err;
  EXPECT_NE(thrown.err.find("\n  std::runtime_error: the worker's own words"),
            std::string::npos)
      << thrown.err;
  const auto killed = run({"-n", "3", worker, "kill"});
  EXPECT_EQ(killed.exit_code, 137);
  EXPECT_NE(killed.err.find("rank 1 failed: signal SIGKILL"), std::string::npos)
      << killed.err;
}

TEST(RunCommand, RestartedWorkersFindEachOtherAgain) {
  const auto result = run(
      {"-n", "2", "--max-restarts", "1", testing::built_program("launch_worker"), "once"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("[1] rank 1 of 2 sum 3 restarts 1"), std::string::npos)
      << result.out;
}

class WithPython : public ::testing::Test {
 protected:
  void SetUp() override {
    python_ = testing::python_with_torch();
    if (python_.empty()) GTEST_SKIP() << "no Python here can import torch";
  }
  std::string python_;
  TemporaryFolder folder_;
  const CommandOptions slow_{.wall = std::chrono::milliseconds(120'000)};
};

constexpr const char* kScript = R"(import sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    x = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", x[0].item(), sys.argv[1:])
    if "raise" in sys.argv and dist.get_rank() == 1:
        dist.destroy_process_group()
        raise ValueError("python's own words")
    dist.barrier()
    dist.destroy_process_group()
main()
)";

TEST_F(WithPython, AScriptForTorchrunRunsUnchanged) {
  const std::string script = folder_.script("train.py", kScript);
  CommandOptions options = slow_;
  options.environment = {{"PYTHON_EXEC", python_}};
  const auto result = run({"--nproc_per_node=2", script, "--lr", "1"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.sorted_lines(), (Lines{"[0] rank 0 of 2 sum 3.0 ['--lr', '1']",
                                          "[1] rank 1 of 2 sum 3.0 ['--lr', '1']"}));
}

TEST_F(WithPython, AScriptsExceptionIsShown) {
  folder_.script("train.py", kScript);
  CommandOptions options = slow_;
  options.environment = {{"PYTHON_EXEC", python_}, {"PYTHONPATH", folder_.path()}};
  const auto result = run({"-n", "2", "-m", "train", "raise"}, options);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.err.find("rank 1 failed: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("\n  ValueError: python's own words"), std::string::npos)
      << result.err;
}

TEST_F(WithPython, TorchrunStartsOurPrograms) {
  const std::string worker = testing::built_program("launch_worker");
  const std::vector<std::string> torchrun{
      python_,           "-m",          "torch.distributed.run",
      "--standalone",    "--no-python", "--nproc-per-node=2",
      "--max-restarts=0"};
  auto good = torchrun;
  good.push_back(worker);
  const auto result = run_command(good, slow_);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.sorted_lines(),
            (Lines{"rank 0 of 2 sum 3 restarts 0", "rank 1 of 2 sum 3 restarts 0"}));
  auto bad = torchrun;
  bad.insert(bad.end(), {worker, "throw"});
  const auto failed = run_command(bad, slow_);
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_NE(failed.err.find("the worker's own words"), std::string::npos) << failed.err;
}

}  // namespace
}  // namespace brigade
