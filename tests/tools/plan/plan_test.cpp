// brigade plan, as a user types it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "brigade/hooks/registry.h"
#include "tools/common/program.h"

namespace brigade {
namespace {

using nlohmann::json;
using testing::brigade_program;
using testing::Program;

// A safetensors file by its format: length of the header, header, data.
void write_safetensors(const std::string& path, const std::string& header,
                       size_t data_bytes) {
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << std::string(data_bytes, '\0');
}

TEST(Plan, PredictsEveryHookOfTheTableAndChoosesOne) {
  const Program plan({"plan", "--params", "25M", "--hosts", "4", "--gpus", "2", "--link",
                      "100mbit", "--compute", "120"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const json found = plan.json();
  EXPECT_EQ(found["hooks"].size(), static_cast<size_t>(std::ranges::count(
                                       hook_table(), false, &HookEntry::of_hooks)));
  EXPECT_EQ(found["hooks"][0]["hook"], "allreduce");
  for (const json& row : found["hooks"]) {
    SCOPED_TRACE(row.dump());
    EXPECT_GE(row["step_ms"].get<double>(), 120 - 1e-6);
    EXPECT_LE(row["low_ms"], row["step_ms"]);
    EXPECT_GE(row["high_ms"], row["step_ms"]);
    if (row["hook"] == "noop") {
      EXPECT_NEAR(row["step_ms"].get<double>(), 120, 1e-6);
    }
  }
  // 175 MB over 100 Mbit/s: whatever this machine is, it is not the machine.
  EXPECT_GT(found["hooks"][0]["step_ms"], 12'000);
  EXPECT_NE(found["choice"]["hook"], "allreduce");
  EXPECT_NE(found["choice"]["hook"], "noop");
  EXPECT_EQ(found["choice"]["sureness"], "sure");
  EXPECT_FALSE(found["choice"]["reasons"].empty());
  const std::string choice = found["choice"]["hook"];
  EXPECT_NE(plan.out.find("Use " + choice), std::string::npos) << plan.out;
}

TEST(Plan, KeepsAllreduceWhereTheLinkIsNoObstacle) {
  const Program plan({"plan", "--params", "1M", "--link", "100gbit", "--compute", "500",
                      "--hooks", "fp16,int8"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.json()["choice"]["hook"], "allreduce");
  EXPECT_EQ(plan.json()["hooks"].size(), 3U);
  EXPECT_NE(plan.out.find("Use allreduce"), std::string::npos) << plan.out;
}

TEST(Plan, TakesTheShapesOfACheckpoint) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/model.safetensors";
  write_safetensors(
      path,
      R"({"model/w":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]},)"
      R"("model/b":{"dtype":"F32","shape":[64],"data_offsets":[16384,16640]},)"
      R"("optimizer/m":{"dtype":"F32","shape":[64],"data_offsets":[16640,16896]},)"
      R"("model/steps":{"dtype":"I64","shape":[1],"data_offsets":[16896,16904]}})",
      16904);
  const Program plan({"plan", "--model", path, "--link", "1gbit", "--compute", "1", "--cpu",
                      "--hooks", "fp16"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.json()["job"]["params"], 64 * 64 + 64);
}

TEST(Plan, RefusesWhatItCannotReadInOneLineAndWritesNothing) {
  const testing::TemporaryFolder folder;
  const std::string garbage = folder.path() + "/garbage.safetensors";
  std::ofstream(garbage) << "this is no checkpoint";
  const std::string whole_numbers = folder.path() + "/numbers.safetensors";
  write_safetensors(whole_numbers,
                    R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8);
  struct Case {
    std::vector<std::string> words;
    int exit_code;
    std::string named, forms;
  };
  const std::vector<std::string> rest{"--link", "1gbit", "--compute", "10"};
  const std::vector<Case> cases{
      {{"--params", "many"}, 2, "many", "25M"},
      {{"--params", "0"}, 2, "'0'", "25M"},
      {{"--params", "1M", "--model", garbage}, 2, "--params", "--model"},
      {{}, 2, "--params", "--model"},
      {{"--params", "1M", "--hooks", "int9"}, 2, "int9", "int8"},
      {{"--params", "1M", "--link", "quick"}, 2, "quick", "1gbit"},
      {{"--params", "1M", "--compute", "-3"}, 2, "--compute", "-3"},
      {{"--params", "1M", "--hosts", "0"}, 2, "--hosts", "1"},
      {{"--validate", "--validate-size", "2Q"}, 2, "2Q", "1M"},
      {{"--params", "1M", "--compute", "nan"}, 2, "--compute", "nan"},
      {{"--params", "1M", "--compute", "inf"}, 2, "--compute", "inf"},
      {{"--params", "1M", "--latency", "nan"}, 2, "--latency", "nan"},
      {{"--model", folder.path() + "/none"}, 2, "/none", "No such file"},
      {{"--model", garbage}, 2, "garbage.safetensors", "not a safetensors file"},
      {{"--model", whole_numbers}, 2, "numbers.safetensors", "floating"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> words{"plan"};
    // What comes later wins nothing: an option is given once.
    for (size_t index = 0; index < rest.size(); index += 2) {
      if (std::find(c.words.begin(), c.words.end(), rest[index]) == c.words.end())
        words.insert(words.end(), {rest[index], rest[index + 1]});
    }
    words.insert(words.end(), c.words.begin(), c.words.end());
    const Program plan(words);
    SCOPED_TRACE(plan.err);
    EXPECT_EQ(plan.exit_code, c.exit_code);
    ASSERT_FALSE(c.named.empty() || c.forms.empty());  // an empty text is in every error
    EXPECT_NE(plan.err.find(c.named), std::string::npos) << c.named;
    EXPECT_NE(plan.err.find(c.forms), std::string::npos) << c.forms;
    EXPECT_EQ(std::count(plan.err.begin(), plan.err.end(), '\n'), 1);
    EXPECT_FALSE(plan.wrote_json());
  }
}

TEST(Plan, AdvisesPowerSgdWithItsFirstExactStepsAndNeverTheBatchedFormBeforeIt) {
  // A link so slow that what sends least is the quickest by far.
  const Program plan({"plan", "--params", "25M", "--link", "1mbit", "--compute", "10",
                      "--cpu", "--hooks", "batched_powersgd,powersgd:rank=2"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.json()["choice"]["hook"], "powersgd:rank=2");
  EXPECT_EQ(plan.json()["hooks"][2]["hook"], "powersgd:rank=2,start=0");
  EXPECT_NE(plan.out.find("Use powersgd:rank=2: "), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("Its first 1000 steps average exactly"), std::string::npos)
      << plan.out;
  // Who writes start=0 means it.
  const Program asked({"plan", "--params", "25M", "--link", "1mbit", "--compute", "10",
                       "--hooks", "powersgd:rank=2,start=0"});
  EXPECT_EQ(asked.json()["choice"]["hook"], "powersgd:rank=2,start=0");
  EXPECT_EQ(asked.out.find("average exactly"), std::string::npos) << asked.out;
}

TEST(Plan, SaysWhatIsMissing) {
  const Program link({"plan", "--params", "1M", "--compute", "10"});
  EXPECT_EQ(link.exit_code, 2);
  EXPECT_NE(link.err.find("--link is missing"), std::string::npos) << link.err;
  const Program compute({"plan", "--params", "1M", "--link", "1gbit"});
  EXPECT_EQ(compute.exit_code, 2);
  EXPECT_NE(compute.err.find("--compute is missing"), std::string::npos) << compute.err;
}

TEST(Plan, LeavesNothingWhenItIsInterrupted) {
  const testing::TemporaryFolder folder;
  const std::string mark = "PLAN_TEST_" + std::to_string(getpid());
  testing::Command plan({brigade_program(), "plan", "--validate", "--validate-size", "256M",
                         "--json", folder.path() + "/plan.json"},
                        {.environment = {{mark, "1"}}});
  ASSERT_TRUE(plan.wait_for_output("measured here"));
  plan.signal(SIGINT);
  EXPECT_EQ(plan.finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(testing::none_left(mark));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Plan, ExplainsItselfWithAnExample) {
  const auto help = testing::run_command({brigade_program(), "plan", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("brigade plan --params"), std::string::npos) << help.out;
}

}  // namespace
}  // namespace brigade
