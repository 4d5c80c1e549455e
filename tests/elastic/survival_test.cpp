// Workers die, and the training goes on: real processes under brigade run.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>

#include "elastic/outcome.h"

namespace brigade {
namespace {

using testing::built_program;
using testing::Command;
using testing::CommandResult;
using testing::TemporaryFolder;

std::vector<std::string> words_of(const std::vector<std::string>& launcher,
                                  const std::string& folder,
                                  const std::vector<std::string>& trainer) {
  std::vector<std::string> words{built_program("brigade"), "run", "--elastic"};
  words.insert(words.end(), launcher.begin(), launcher.end());
  words.insert(words.end(), {built_program("elastic_trainer"), folder});
  words.insert(words.end(), trainer.begin(), trainer.end());
  return words;
}

testing::CommandOptions within(int seconds, int limit = 20) {
  return {
      .environment = {{"OMP_NUM_THREADS", "1"}, {"BRIGADE_TIMEOUT", std::to_string(limit)}},
      .wall = std::chrono::seconds(seconds)};
}

Outcome run(const std::vector<std::string>& launcher,
            const std::vector<std::string>& trainer, int limit = 20) {
  const TemporaryFolder folder;
  const CommandResult result =
      testing::run_command(words_of(launcher, folder.path(), trainer), within(60, limit));
  return outcome_of(result, folder.path());
}

TEST(Elastic, TrainsToTheEndWithoutAFailure) {
  const Outcome outcome = run({"-n", "3"}, {"samples=50", "epochs=2"});
  expect_good_end(outcome, 3);
  EXPECT_EQ(outcome.events.size(), 3U) << "one generation";
}

// Each case dies at another point, in another kind of training.
TEST(Elastic, GoesOnWithoutAWorkerThatDies) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"forward", {"mixed=bf16"}},
      {"backward", {"mixed=bf16", "views=1"}},
      {"backward", {"scaler=1", "accumulate=2"}},
      {"apply", {"scaler=1"}},
      {"next", {}}};
  for (const auto& [where, options] : cases) {
    std::vector<std::string> trainer{"kills=1", "samples=60", "epochs=2",
                                     "at=" + where + ":4:1"};
    trainer.insert(trainer.end(), options.begin(), options.end());
    SCOPED_TRACE(where + (options.empty() ? "" : " " + options[0]));
    const Outcome outcome = run({"-n", "3"}, trainer);
    expect_good_end(outcome, 2);
    EXPECT_EQ(outcome.deaths.size(), 1U);
  }
}

// These compress within so few steps and for so small a model.
constexpr const char* kPowerSGD = "hook=powersgd:rank=1,start=2,min_rate=0.1";
constexpr const char* kOneRound = "hook=powersgd:rank=1,rounds=1,start=2,min_rate=0.1";
constexpr const char* kBatched = "hook=batched_powersgd:rank=1,start=2";

TEST(Elastic, GoesOnWhenTwoDieAtOnce) {
  const Outcome outcome = run({"-n", "4"}, {"kills=2", "samples=60", "epochs=2", kOneRound,
                                            "at=backward:4:1,backward:4:3"});
  expect_good_end(outcome, 2);
  EXPECT_EQ(outcome.deaths.size(), 2U);
}

TEST(Elastic, AReplacementTakesTheDeadOnesPlace) {
  const Outcome outcome =
      run({"-n", "3", "--replace"},
          {"kills=1", "samples=60", "epochs=40", "pause_ms=4", "late=2", "at=backward:4:0",
           kBatched, "optimizer=adamw", "mixed=bf16", "scaler=1", "accumulate=2"});
  expect_good_end(outcome, 3, /*exact=*/false);
  EXPECT_EQ(outcome.largest_after(2), 3);
}

TEST(Elastic, ShrinksToOneAndGrowsToFourAgain) {
  const Outcome outcome =
      run({"-n", "4", "--replace"}, {"kills=3", "samples=64", "epochs=60", "pause_ms=3",
                                     "late=1", "at=forward:5:1,forward:5:2,forward:5:3"});
  expect_good_end(outcome, 4);
  EXPECT_TRUE(outcome.had(1)) << "it was not down to one";
  EXPECT_EQ(outcome.largest_after(1), 4);
}

TEST(Elastic, TheSourceMayDieWhileItSendsAndANewcomerWhileItLoads) {
  // Rank 3 dies. The source dies when it has sent half of the state to the replacement, and
  // so does the next one. The last one sends, and the newcomer at rank 3 dies while it
  // loads.
  const Outcome outcome = run({"-n", "4", "--replace", "--grace", "15000"},
                              {"kills=4", "samples=64", "epochs=5", "pause_ms=2",
                               "payload=3000000", "at=forward:5:3,load:0:3,send:5:0"});
  expect_good_end(outcome, 4);
  EXPECT_EQ(outcome.died("send"), 2);
  EXPECT_EQ(outcome.deaths.size(), 4U);
}

// This is more often than a step may fail among the same members.
TEST(Elastic, NewcomersThatDieAreNotTheProgramsFault) {
  const Outcome outcome =
      run({"-n", "2", "--replace", "--grace", "15000"},
          {"kills=6", "samples=60", "epochs=2", "at=forward:5:1,load:0:1"});
  expect_good_end(outcome, 2);
  EXPECT_EQ(outcome.deaths.size(), 6U);
}

TEST(Elastic, AStoppedWorkerIsGivenUpAndEnded) {
  const Outcome outcome =
      run({"-n", "3"}, {"samples=60", "epochs=2", "at=stop:4:1"}, /*limit=*/3);
  expect_good_end(outcome, 2);
}

TEST(Elastic, AReplacementThatIsNotLikeTheOthersEndsAndTheyGoOn) {
  const Outcome outcome =
      run({"-n", "3", "--replace", "--max-restarts", "1"},
          {"kills=1", "samples=60", "epochs=60", "pause_ms=3", "at=next:5:1", "misfit=1"});
  expect_good_end(outcome, 2);
  EXPECT_NE(outcome.command.err.find("MismatchError"), std::string::npos)
      << outcome.command.err;
}

TEST(Elastic, NoReplacementIsStartedWhereNoneIsAllowed) {
  const Outcome outcome = run({"-n", "2", "--replace", "--max-restarts", "0"},
                              {"kills=1", "samples=60", "epochs=2", "at=next:5:1"});
  expect_good_end(outcome, 1);
  EXPECT_NE(outcome.command.err.find("the others go on\n"), std::string::npos)
      << outcome.command.err;
}

TEST(Elastic, RanksThatTrainApartMeetAgain) {
  const Outcome undisturbed = run({"-n", "2"}, {"samples=60", "epochs=2", "apart=4"});
  expect_good_end(undisturbed, 2);
  // One dies before a periodic mean; a replacement comes; all are equal after the last
  // mean.
  const Outcome outcome =
      run({"-n", "3", "--replace"}, {"kills=1", "samples=60", "epochs=60", "pause_ms=3",
                                     "apart=8", "outer=1", "late=2", "at=backward:13:1"});
  expect_good_end(outcome, 3, /*exact=*/false);
  EXPECT_EQ(outcome.largest_after(2), 3);
}

TEST(Elastic, RandomDeathsUnderSeveralHooks) {
  int deaths = 0;
  for (const std::string hook : {"hook=none", "hook=int8", kPowerSGD}) {
    SCOPED_TRACE(hook);
    const Outcome outcome =
        run({"-n", "4", "--replace"},
            {"kills=8", "mean_ms=500", "samples=64", "epochs=120", "pause_ms=2", hook});
    expect_good_end(outcome, 4, /*exact=*/hook != "hook=int8");
    deaths += static_cast<int>(outcome.deaths.size());
  }
  EXPECT_GE(deaths, 20);
}

// ---- to the bit -------------------------------------------------------------------------

TEST(Elastic, AfterADeathBetweenTwoStepsTheRunEqualsOneOfAsManyRanksFromThatState) {
  // The death is before step 0, so both runs begin with the same state.
  const Outcome shrunk = run({"-n", "3"}, {"kills=1", "samples=60", "epochs=2", "seed=5",
                                           "at=next:0:2", kPowerSGD});
  const Outcome plain = run({"-n", "2"}, {"samples=60", "epochs=2", "seed=5", kPowerSGD});
  expect_good_end(shrunk, 2, /*exact=*/false);
  expect_good_end(plain, 2, /*exact=*/false);
  ASSERT_EQ(shrunk.deaths.size(), 1U);
  EXPECT_EQ(shrunk.endings[0].hash, plain.endings[0].hash);
}

// The same later, with momentum and a hook's state: compares with a run of two that resumes
// from the only checkpoint, of step 12. With `again`, a replacement dies as well, just
// before it takes the state.
void expect_to_go_on_as_from_a_checkpoint(const std::string& hook, int64_t death,
                                          bool again = false) {
  SCOPED_TRACE(hook + (again ? ", a replacement dies" : ""));
  const TemporaryFolder folder;
  const std::vector<std::string> options{"samples=54", "batch=2", "epochs=2",
                                         "checkpoint=12", hook};
  auto dies = options;
  dies.insert(dies.end(), {again ? "kills=2" : "kills=1",
                           "at=load:0:2,next:" + std::to_string(death) + ":2"});
  std::vector<std::string> launcher{"-n", "3"};
  if (again)
    launcher.insert(launcher.end(), {"--replace", "--max-restarts=1", "--grace=20000"});
  const Outcome shrunk =
      outcome_of(testing::run_command(words_of(launcher, folder.path(), dies), within(60)),
                 folder.path());
  const Outcome resumed = outcome_of(
      testing::run_command(words_of({"-n", "2"}, folder.path(), options), within(60)),
      folder.path());
  expect_good_end(shrunk, 2, /*exact=*/false);
  expect_good_end(resumed, 2, /*exact=*/false);
  ASSERT_EQ(shrunk.deaths.size(), again ? 2U : 1U);
  EXPECT_EQ(shrunk.events.back().step, death);
  EXPECT_EQ(resumed.events.back().step, 12);
  EXPECT_EQ(shrunk.endings[0].hash, resumed.endings[0].hash);
}

TEST(Elastic, AfterALaterDeathTheRunEqualsOneFromTheCheckpointOfThatMoment) {
  // Each rank has its own residual, and a checkpoint of three gives two ranks the mean. So
  // the hook has none where three save; where it has some, two save a step after the death.
  expect_to_go_on_as_from_a_checkpoint(std::string(kBatched) + ",ef=0", 12);
  expect_to_go_on_as_from_a_checkpoint(kPowerSGD, 11);
  // The data that they send depends on the layout of the buckets, which must stay the same.
  expect_to_go_on_as_from_a_checkpoint("hook=int8", 11);
  expect_to_go_on_as_from_a_checkpoint(kBatched, 11);
  expect_to_go_on_as_from_a_checkpoint(std::string(kBatched) + ",ef=0", 12, /*again=*/true);
}

TEST(Elastic, TheDemonstrationSurvivesItsDeath) {
  const TemporaryFolder folder;
  const CommandResult result =
      testing::run_command({built_program("brigade"), "demo", "--kill", "--hook", "fp16",
                            "--out", folder.path() + "/out"},
                           within(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("2 workers go on"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("All 3 replicas are identical"), std::string::npos)
      << result.out;
  std::ifstream report(folder.path() + "/out/report.html");
  const std::string page(std::istreambuf_iterator<char>(report), {});
  EXPECT_NE(page.find("rank 1 ended by SIGKILL"), std::string::npos)
      << "no mark of the generation that followed";
}

// ---- ends and wrong uses ----------------------------------------------------------------

TEST(Elastic, EndsWithFewerThanTheLeast) {
  const Outcome outcome =
      run({"-n", "3", "--min-workers", "3"}, {"kills=1", "samples=60", "at=forward:2:1"});
  EXPECT_EQ(outcome.command.exit_code, 128 + SIGKILL);
  EXPECT_NE(outcome.command.err.find("fewer than --min-workers 3"), std::string::npos)
      << outcome.command.err;
}

TEST(Elastic, AMistakeOfTheProgramIsNotTriedAgain) {
  const Outcome outcome = run({"-n", "2"}, {"samples=60", "at=throw:2:0,throw:2:1"});
  EXPECT_EQ(outcome.command.exit_code, 1);
  EXPECT_NE(outcome.command.err.find("a mistake"), std::string::npos)
      << outcome.command.err;
}

// It would make the mistake again, so nothing is repeated, and the others go on.
TEST(Elastic, AMistakeOfAHookIsThrownAtOnceWhereItWasMade) {
  const Outcome outcome =
      run({"-n", "3"}, {"samples=60", "epochs=2", "hook=clumsy", "at=hook:4:2"});
  expect_good_end(outcome, 2);
  EXPECT_EQ(outcome.events.size(), 5U) << "three ranks, then two";
  const std::string& err = outcome.command.err;
  EXPECT_NE(err.find("rank 2: hook 'clumsy', bucket 0, step 4: the hook's own mistake"),
            std::string::npos)
      << err;
  EXPECT_EQ(err.find("with the same members"), std::string::npos) << err;
}

TEST(Elastic, ALoopThatSkipsStepIsToldSo) {
  const Outcome outcome = run({"-n", "2"}, {"mistake=skips_step"});
  EXPECT_EQ(outcome.command.exit_code, 1);
  EXPECT_NE(outcome.command.err.find("next() was called again without step()"),
            std::string::npos)
      << outcome.command.err;
}

TEST(Elastic, RanksThatDisagreeAboutSamplesAreToldSo) {
  const TemporaryFolder folder;
  const std::string script =
      folder.script("train", "#!/bin/sh\nexec " + built_program("elastic_trainer") + " " +
                                 folder.path() + " samples=$((60 + RANK))\n");
  const CommandResult result = testing::run_command(
      {built_program("brigade"), "run", "--elastic", "-n", "2", script}, within(60));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("differ"), std::string::npos) << result.err;
}

TEST(Elastic, WithoutALauncherItIsAJobOfOne) {
  const TemporaryFolder folder;
  const CommandResult result = testing::run_command(
      {built_program("elastic_trainer"), folder.path(), "samples=30"}, within(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(endings_in(result.out).size(), 1U);
  EXPECT_EQ(endings_in(result.out)[0].seen, "once");
}

TEST(Elastic, UnderAPlainLauncherItTrainsAsEver) {
  const TemporaryFolder folder;
  const CommandResult result =
      testing::run_command({built_program("brigade"), "run", "-n", "2",
                            built_program("elastic_trainer"), folder.path(), "samples=30"},
                           within(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto endings = endings_in(result.out);
  ASSERT_EQ(endings.size(), 2U);
  EXPECT_EQ(endings[0].hash, endings[1].hash);
  EXPECT_EQ(endings[0].seen, "once");
}

TEST(Elastic, UnderTorchrunAllStartAgainFromTheCheckpoint) {
  const std::string python = testing::python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const TemporaryFolder folder;
  const CommandResult result = testing::run_command({python,
                                                     "-m",
                                                     "torch.distributed.run",
                                                     "--rdzv-backend",
                                                     "c10d",
                                                     "--rdzv-endpoint",
                                                     "127.0.0.1:0",
                                                     "--local-addr",
                                                     "127.0.0.1",
                                                     "--nproc-per-node",
                                                     "2",
                                                     "--max-restarts",
                                                     "1",
                                                     "--monitor-interval",
                                                     "0.1",
                                                     "--no-python",
                                                     built_program("elastic_trainer"),
                                                     folder.path(),
                                                     "samples=60",
                                                     "epochs=2",
                                                     "kills=1",
                                                     "at=forward:9:1",
                                                     "checkpoint=4"},
                                                    within(120));
  expect_good_end(outcome_of(result, folder.path()), 2);
  const auto events = events_in(folder.path());
  ASSERT_EQ(events.size(), 4U) << "two starts of two workers";
  EXPECT_EQ(events[2].step, 8) << "from the last checkpoint";
}

TEST(Elastic, ACheckpointIsTakenUpWhenAllHaveDied) {
  const TemporaryFolder folder;
  const std::vector<std::string> trainer{"samples=60", "epochs=2", "checkpoint=4"};
  auto throws = trainer;
  throws.push_back("at=throw:9:0,throw:9:1");
  const CommandResult first =
      testing::run_command(words_of({"-n", "2"}, folder.path(), throws), within(60));
  EXPECT_EQ(first.exit_code, 1) << first.err;
  const CommandResult second =
      testing::run_command(words_of({"-n", "1"}, folder.path(), trainer), within(60));
  expect_good_end(outcome_of(second, folder.path()), 1);
  EXPECT_EQ(events_in(folder.path()).back().step, 8);
}

TEST(Elastic, AProgramThatKnowsNothingOfItEndsAsEver) {
  const CommandResult result =
      testing::run_command({built_program("brigade"), "run", "--elastic", "-n", "2",
                            built_program("launch_worker"), "throw"},
                           within(60));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the worker's own words"), std::string::npos) << result.err;
}

TEST(Elastic, OptionsOfAnElasticJobNeedOne) {
  const CommandResult result = testing::run_command(
      {built_program("brigade"), "run", "--replace", "true"}, within(60));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--replace is for jobs with --elastic"), std::string::npos);
}

}  // namespace
}  // namespace brigade
