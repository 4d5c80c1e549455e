// brigade bench, as a user types it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "brigade/hooks.h"
#include "support/network_namespaces.h"
#include "tools/common/program.h"

namespace brigade {
namespace {

using nlohmann::json;
using testing::brigade_program;
using testing::Command;
using testing::none_left;
using testing::Program;
using testing::TemporaryFolder;

TEST(Bench, TimesAndVerifiesEveryHookOfTheTable) {
  const Program bench({"bench", "--sizes", "64K,256K", "--steps", "3"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json rows = bench.json()["rows"];
  ASSERT_EQ(rows.size(), 2 * hook_table().size());
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row["steps"], 3);
    EXPECT_GT(row["p50_ms"], 0);
    EXPECT_GE(row["p99_ms"], row["p50_ms"]);
    EXPECT_NEAR(row["algbw_gb_s"].get<double>(),
                row["size_bytes"].get<double>() / row["p50_ms"].get<double>() / 1e6, 1e-6);
    EXPECT_EQ(row.contains("verified"), row["hook"] != "noop");
    EXPECT_TRUE(row.value("verified", true));
    EXPECT_NE(bench.out.find(row["hook"].get<std::string>()), std::string::npos);
  }
}

TEST(Bench, CountsTheBytesOfTheAlgorithm) {
  const Program bench(
      {"bench", "-n", "3", "--sizes", "768K", "--steps", "1", "--hooks", "allreduce,fp16"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json rows = bench.json()["rows"];
  // The factor is 2 (W - 1) / W, with four bytes for each value, or two.
  EXPECT_EQ(rows[0]["wire_bytes"], 1024 * 1024);
  EXPECT_NEAR(rows[1]["wire_bytes"].get<double>(), 512 * 1024, 64);
  EXPECT_NEAR(rows[0]["busbw_gb_s"].get<double>(),
              rows[0]["algbw_gb_s"].get<double>() * 4 / 3, 1e-9);
}

TEST(Bench, TakesHooksWithOptionsAndStartsLowRankOnesAtOnce) {
  const Program bench({"bench", "--sizes", "64K", "--steps", "1", "--hooks",
                       "powersgd:rank=1,warm=0,fp16+powersgd,int8"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json hooks = bench.json()["hooks"];
  EXPECT_EQ(hooks,
            json({"powersgd:rank=1,warm=0,start=0", "fp16+powersgd:start=0", "int8"}));
}

TEST(Bench, RefusesWhatItCannotReadInOneLineAndWritesNothing) {
  struct Case {
    std::vector<std::string> words;
    std::string named, forms;
  };
  const std::vector<Case> cases{
      {{"--hooks", "fp61"}, "fp61", "fp16"},
      {{"--hooks", "powersgd:rnk=2"}, "rnk", "rank"},
      {{"--hooks", "fp16,,int8"}, "fp16,,int8", "comma"},
      {{"--sizes", "16X"}, "16X", "1M"},
      {{"--sizes", "4M:1M"}, "4M:1M", "smaller"},
      {{"--sizes", "1M:4M:1"}, "1M:4M:1", "factor"},
      {{"--sizes", "3"}, "'3'", "64G"},
      {{"--sizes", "64G", "-n", "64"}, "64 GiB", "memory"},
      {{"--link", "fast"}, "fast", "100mbit"},
      {{"-n", "1"}, "1", "2"},
      {{"--device", "tpu"}, "tpu", "cuda"},
      {{"--frobnicate"}, "frobnicate", "--help"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> words{"bench"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const Program bench(words);
    SCOPED_TRACE(bench.err);
    EXPECT_EQ(bench.exit_code, 2);
    EXPECT_NE(bench.err.find(c.named), std::string::npos) << c.named;
    EXPECT_NE(bench.err.find(c.forms), std::string::npos) << c.forms;
    EXPECT_EQ(std::count(bench.err.begin(), bench.err.end(), '\n'), 1);
    EXPECT_FALSE(bench.wrote_json());
  }
}

TEST(Bench, LooksWhetherItsFileCanBeWrittenBeforeItWorks) {
  const auto result = testing::run_command(
      {brigade_program(), "bench", "--json", "/proc/nowhere/bench.json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("/proc/nowhere"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(Bench, TimesPyTorchsHooksInTheSameRunAndSkipsThoseThatHang) {
  const std::string python = testing::python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const Program bench({"bench", "--sizes", "64K", "--steps", "2", "--against-pytorch"},
                      {{"PYTHON_EXEC", python}});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json rows = bench.json()["pytorch"]["rows"];
  ASSERT_EQ(rows.size(), hook_table().size());
  const std::set<std::string> run{"allreduce", "fp16", "bf16", "noop", "powersgd"};
  for (const json& row : rows) {
    const std::string hook = row["hook"];
    const bool runs = run.contains(hook.substr(0, hook.find(':')));
    EXPECT_EQ(row.contains("p50_ms"), runs) << row.dump();
    EXPECT_EQ(row.contains("skipped"), !runs) << row.dump();
    EXPECT_TRUE(row.value("verified", true)) << row.dump();
  }
  EXPECT_NE(bench.out.find("ours/PyTorch"), std::string::npos);
  EXPECT_EQ(bench.out.find("of one step"), std::string::npos) << "there were two";
}

// None of the table's names may select another hook.
TEST(Bench, RegistersTheHookOfTheNameWithPyTorch) {
  const std::string python = testing::python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const std::string script = R"(
import runpy, sys
bench = runpy.run_path(sys.argv[1])
class Ddp:
    def __init__(self, spec):
        self.spec = spec
    def register_comm_hook(self, state, hook):
        print(self.spec, hook.__name__, getattr(state, "matrix_approximation_rank", ""))
for spec, name in zip(sys.argv[2::2], sys.argv[3::2]):
    bench["register"](Ddp(spec), name, spec)
)";
  std::vector<std::string> words{
      python, "-c", script, BRIGADE_SOURCE_DIR "/tools/brigade/bench/pytorch.py",
      "none", ""};
  for (const HookEntry& entry : hook_table()) {
    const bool has_rank = std::ranges::find(entry.options, "rank") != entry.options.end();
    words.push_back(std::string(entry.name) + (has_rank ? ":rank=2,start=0" : ""));
    words.emplace_back(entry.torch.name);
  }
  const auto result = testing::run_command(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "allreduce allreduce_hook \nfp16 fp16_compress_hook \n"
            "bf16 bf16_compress_hook \nquantize_per_tensor quantization_pertensor_hook \n"
            "quantize_per_channel quantization_perchannel_hook \n"
            "powersgd:rank=2,start=0 powerSGD_hook 2\n"
            "batched_powersgd:rank=2,start=0 batched_powerSGD_hook 2\nnoop noop_hook \n");
}

// Its first steps, which only average, may be slow where the others are not.
TEST(Bench, JudgesPyTorchsPowerSgdByAStepThatCompresses) {
  const std::string python = testing::python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const std::string script = R"(
import runpy, sys, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
bench = runpy.run_path(sys.argv[1])
class Slow(bench["Measurement"]):
    steps = 0
    def step(self):
        self.steps += 1
        return 5 if self.steps < 3 else 0.1
for hook, name in (("powersgd:rank=2,start=0", "powerSGD_hook.powerSGD_hook"),
                   ("fp16", "default_hooks.fp16_compress_hook")):
    print(Slow({"shapes": [[8, 8]], "hook": hook, "torch_hook": name}, "cpu").slow)
)";
  const auto result = testing::run_command(
      {python, "-c", script, BRIGADE_SOURCE_DIR "/tools/brigade/bench/pytorch.py"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "0\n1\n");
}

TEST(Bench, TimesAModelWithoutAHook) {
  const std::string python = testing::python_with_torch();
  std::vector<std::string> words{"bench", "--sizes", "64K",           "--steps",
                                 "1",     "--hooks", "none,allreduce"};
  if (!python.empty()) words.push_back("--against-pytorch");
  const Program bench(words, {{"PYTHON_EXEC", python}});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json row = bench.json()["rows"][0];
  EXPECT_EQ(row["hook"], "none");
  EXPECT_TRUE(row["verified"]);
  EXPECT_GT(row["p50_ms"], 0);
  EXPECT_FALSE(row.contains("wire_bytes")) << "nobody has counted them";
  if (python.empty()) return;
  for (const json& theirs : bench.json()["pytorch"]["rows"]) {
    EXPECT_GT(theirs["p50_ms"], 0);
    EXPECT_TRUE(theirs["verified"]) << theirs.dump();
  }
  EXPECT_NE(bench.out.find("of one step"), std::string::npos) << bench.out;
}

TEST(Bench, SaysWhyThereIsNoPyTorch) {
  const Program bench(
      {"bench", "--sizes", "64K", "--steps", "1", "--hooks", "fp16", "--against-pytorch"},
      {{"PYTHON_EXEC", "/bin/false"}});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_NE(bench.out.find("/bin/false"), std::string::npos) << bench.out;
  EXPECT_TRUE(bench.json()["pytorch"].contains("skipped"));
}

// Users should not have to compute this from the columns.
TEST(Bench, SaysBelowWhichLinkSpeedEachHookOvertakesAllreduce) {
  const Program bench({"bench", "--sizes", "256K,1M", "--steps", "9", "--hooks",
                       "none,allreduce,fp16,int8,topk,fixed,noop,auto"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json rows = bench.json()["rows"];
  std::map<json, json> all_reduce;  // by size
  for (const json& row : rows) {
    if (row["hook"] == "allreduce") all_reduce[row["size_bytes"]] = row;
  }
  const size_t table = bench.out.find("Quicker than allreduce on links slower than");
  ASSERT_NE(table, std::string::npos) << bench.out;
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const std::string hook = row["hook"];
    const bool compared =
        std::set<std::string>{"fp16", "int8", "topk", "fixed"}.contains(hook);
    EXPECT_EQ(row.contains("pays"), compared);
    EXPECT_EQ(bench.out.find("\n" + hook + " ", table) != std::string::npos, compared);
    if (!compared) continue;
    const json& base = all_reduce.at(row["size_bytes"]);
    const double seconds =
        (row["p50_ms"].get<double>() - base["p50_ms"].get<double>()) / 1e3;
    const double bits =
        8 * (base["wire_bytes"].get<double>() - row["wire_bytes"].get<double>());
    if (hook == "fixed") {
      EXPECT_EQ(row["pays"], "never");
    } else if (seconds <= 0) {
      EXPECT_EQ(row["pays"], "always");
    } else {
      EXPECT_EQ(row["pays"], "below");
      EXPECT_NEAR(row["pays_below_bit_s"].get<double>() * seconds / bits, 1, 1e-9);
    }
    EXPECT_EQ(row.contains("pays_below_bit_s"), row["pays"] == "below");
  }
}

TEST(Bench, SaysWhatIsMissingToFindTheLinkSpeed) {
  const Program bench({"bench", "--sizes", "64K", "--steps", "1", "--hooks", "fp16,int8"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_NE(bench.out.find("Give --hooks allreduce and others"), std::string::npos)
      << bench.out;
  for (const json& row : bench.json()["rows"]) EXPECT_FALSE(row.contains("pays"));
}

TEST(Bench, AHookThatPaysBelowALinkSpeedIsQuickerOnASlowerLink) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const std::vector<std::string> words{"bench",   "--sizes",       "1M", "--steps", "5",
                                       "--hooks", "allreduce,int8"};
  const Program loopback(words);
  ASSERT_EQ(loopback.exit_code, 0) << loopback.err;
  const json int8 = loopback.json()["rows"][1];
  if (int8["pays"] == "below") {
    ASSERT_GT(int8["pays_below_bit_s"], 50e6) << int8.dump();
  }
  std::vector<std::string> linked = words;
  linked.insert(linked.end(), {"--link", "50mbit"});
  const Program slow(linked);
  ASSERT_EQ(slow.exit_code, 0) << slow.err;
  const json rows = slow.json()["rows"];
  EXPECT_LT(rows[1]["p50_ms"], rows[0]["p50_ms"]);
  EXPECT_FALSE(rows[1].contains("pays")) << "these times have a link's in them";
  EXPECT_EQ(slow.out.find("Quicker than"), std::string::npos) << slow.out;
}

TEST(Bench, RunsOverAShapedLink) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const Program bench({"bench", "--sizes", "256K", "--steps", "1", "--hooks",
                       "allreduce,int8", "--link", "50mbit"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_EQ(bench.json()["link"], "50 Mbit/s");
  EXPECT_TRUE(bench.json()["rows"][1]["verified"]);
}

TEST(Bench, MakesHostsWithSeveralRanks) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const Program bench({"bench", "--sizes", "1M", "--steps", "1", "--hooks",
                       "int8,int8:flat=1,node+allreduce", "--hosts", "2", "-n", "2",
                       "--link", "1gbit"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const json rows = bench.json()["rows"];
  EXPECT_EQ(bench.json()["ranks"], 4);
  EXPECT_EQ(rows[0]["shape"], "2 hosts x 2 ranks");
  EXPECT_EQ(rows[1]["shape"], "flat");
  EXPECT_EQ(rows[2]["shape"], "2 hosts x 2 ranks");
  EXPECT_NEAR(rows[1]["host_bytes"].get<double>() / rows[0]["host_bytes"].get<double>(), 2,
              0.02);
  for (const json& row : rows) EXPECT_TRUE(row["verified"]) << row.dump();
}

TEST(Bench, HostsNeedALink) {
  const auto bench = testing::run_command({brigade_program(), "bench", "--hosts", "2"});
  EXPECT_EQ(bench.exit_code, 2);
  EXPECT_NE(bench.err.find("--link"), std::string::npos) << bench.err;
}

TEST(Bench, LeavesNothingWhenItIsInterrupted) {
  const TemporaryFolder folder;
  const std::string mark = "BENCH_TEST_" + std::to_string(getpid());
  Command bench({brigade_program(), "bench", "--sizes", "64K", "--seconds", "60", "--hooks",
                 "noop,allreduce", "--json", folder.path() + "/bench.json"},
                {.environment = {{mark, "1"}}});
  ASSERT_TRUE(bench.wait_for_output("p50 ms"));
  bench.signal(SIGINT);
  EXPECT_EQ(bench.finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(none_left(mark));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Bench, IsWhatToUseInsteadOfPlan) {
  for (const std::vector<std::string>& rest :
       {std::vector<std::string>{}, {"--params", "25M", "--link", "1gbit"}, {"--help"}}) {
    std::vector<std::string> words{brigade_program(), "plan"};
    words.insert(words.end(), rest.begin(), rest.end());
    const auto plan = testing::run_command(words);
    EXPECT_EQ(plan.exit_code, 2);
    EXPECT_EQ(plan.out, "");
    EXPECT_EQ(plan.err,
              "brigade: unknown command plan: use 'brigade bench', which measures the "
              "hooks here and prints at which link speed each overtakes all-reduce\n");
  }
}

TEST(Bench, ExplainsItselfWithAnExample) {
  const auto help = testing::run_command({brigade_program(), "bench", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("brigade bench --sizes"), std::string::npos) << help.out;
}

}  // namespace
}  // namespace brigade
