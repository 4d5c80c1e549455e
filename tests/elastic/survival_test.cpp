// Workers die, and the training goes on: real processes under brigade run.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "support/command.h"

namespace brigade {
namespace {

using testing::built_program;
using testing::Command;
using testing::CommandResult;
using testing::TemporaryFolder;

struct Ending {  // what one worker said at its end
  int rank = -1;
  int size = 0;
  int64_t steps = 0;
  int64_t kept = 0;
  std::string hash, hash_at, seen;
};

struct Event {
  int64_t ms = 0;
  int pid = 0;
  int generation = 0;
  int members = 0;
  int64_t step = 0;
  int64_t lost = 0;
  int64_t bytes = 0;
};

struct Outcome {
  CommandResult command;
  std::vector<Ending> endings;
  std::vector<Event> events;
  std::vector<std::pair<int64_t, int>> deaths;  // when, pid

  int largest_after(int members) const {  // generation, since there were as few
    bool seen = false;
    int most = 0;
    for (const Event& event : events) {
      seen = seen || event.members <= members;
      if (seen) most = std::max(most, event.members);
    }
    return most;
  }
  bool had(int members) const {
    return std::ranges::any_of(events,
                               [&](const Event& e) { return e.members == members; });
  }
};

std::vector<Ending> endings_in(const std::string& out) {
  std::vector<Ending> found;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("end rank ");
    if (at == std::string::npos) continue;
    std::istringstream words(line.substr(at));
    std::string word;
    Ending end;
    words >> word >> word >> end.rank >> word >> end.size >> word >> end.steps >> word >>
        end.kept >> word >> end.hash >> word;
    words >> word;  // the hash on the way, or the next word
    if (word != "seen") {
      end.hash_at = word;
      words >> word;
    }
    words >> end.seen;
    found.push_back(end);
  }
  return found;
}

Outcome outcome_of(const CommandResult& command, const std::string& folder) {
  Outcome outcome{.command = command, .endings = endings_in(command.out)};
  std::ifstream events(folder + "/events");
  for (std::string line; std::getline(events, line);) {
    Event e;
    std::istringstream(line) >> e.ms >> e.pid >> e.generation >> e.members >> e.step >>
        e.lost >> e.bytes;
    outcome.events.push_back(e);
  }
  std::ifstream deaths(folder + "/deaths");
  for (std::string line; std::getline(deaths, line);) {
    int64_t ms = 0;
    int pid = 0;
    std::istringstream(line) >> ms >> pid;
    outcome.deaths.emplace_back(ms, pid);
  }
  return outcome;
}

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

// All who came to the end have the same parameters, and every sample was trained once an
// epoch.
void expect_good_end(const Outcome& outcome, int workers, bool exact = true) {
  EXPECT_EQ(outcome.command.exit_code, 0) << outcome.command.err;
  ASSERT_EQ(static_cast<int>(outcome.endings.size()), workers)
      << outcome.command.out << outcome.command.err;
  for (const Ending& end : outcome.endings) {
    EXPECT_EQ(end.hash, outcome.endings[0].hash) << "replicas differ";
    EXPECT_EQ(end.kept, end.steps) << "what was kept is of another step";
    if (exact) {
      EXPECT_EQ(end.seen, "once") << "of rank " << end.rank;
    }
  }
}

TEST(Elastic, TrainsToTheEndWithoutAFailure) {
  const Outcome outcome = run({"-n", "3"}, {"samples=50", "epochs=2"});
  expect_good_end(outcome, 3);
  EXPECT_EQ(outcome.events.size(), 3U) << "one generation";
}

TEST(Elastic, GoesOnWithoutAWorkerThatDies) {
  for (const std::string where : {"forward", "backward", "apply", "next"}) {
    const Outcome outcome =
        run({"-n", "3"}, {"kills=1", "samples=60", "epochs=2", "at=" + where + ":4:1"});
    SCOPED_TRACE(where);
    expect_good_end(outcome, 2);
    EXPECT_EQ(outcome.deaths.size(), 1U);
  }
}

TEST(Elastic, GoesOnWhenTwoDieAtOnce) {
  const Outcome outcome = run({"-n", "4"}, {"kills=2", "samples=60", "epochs=2",
                                            "hook=int8", "at=backward:4:1,backward:4:3"});
  expect_good_end(outcome, 2, /*exact=*/false);
  EXPECT_EQ(outcome.deaths.size(), 2U);
}

TEST(Elastic, AReplacementTakesTheDeadOnesPlace) {
  const Outcome outcome =
      run({"-n", "3", "--replace"}, {"kills=1", "samples=60", "epochs=40", "pause_ms=4",
                                     "at=backward:4:0", "hook=powersgd:rank=1"});
  expect_good_end(outcome, 3, /*exact=*/false);
  EXPECT_EQ(outcome.largest_after(2), 3);
}

TEST(Elastic, ShrinksToOneAndGrowsToFourAgain) {
  const Outcome outcome =
      run({"-n", "4", "--replace"}, {"kills=3", "samples=64", "epochs=60", "pause_ms=3",
                                     "at=forward:5:1,forward:5:2,forward:5:3"});
  expect_good_end(outcome, 4);
  EXPECT_TRUE(outcome.had(1)) << "it was not down to one";
  EXPECT_EQ(outcome.largest_after(1), 4);
}

TEST(Elastic, TheSourceMayDieWhileItSendsAndANewcomerWhileItLoads) {
  // Rank 3 dies; its replacement, rank 3 again, dies as it loads; the next one's source
  // dies as it collects what to send.
  const Outcome outcome = run({"-n", "4", "--replace", "--grace", "15000"},
                              {"kills=3", "samples=64", "epochs=30", "pause_ms=2",
                               "payload=3000000", "at=forward:5:3,load:0:3,save:5:0"});
  expect_good_end(outcome, 4);
  EXPECT_EQ(outcome.deaths.size(), 3U);
}

TEST(Elastic, AStoppedWorkerIsGivenUpAndEnded) {
  const Outcome outcome =
      run({"-n", "3"}, {"samples=60", "epochs=2", "at=stop:4:1"}, /*limit=*/3);
  expect_good_end(outcome, 2);
}

TEST(Elastic, RandomDeathsUnderSeveralHooks) {
  int deaths = 0;
  for (const std::string hook : {"none", "allreduce", "fp16", "powersgd:rank=2"}) {
    SCOPED_TRACE(hook);
    const Outcome outcome =
        run({"-n", "4", "--replace"}, {"kills=6", "mean_ms=500", "samples=64", "epochs=70",
                                       "pause_ms=2", "hook=" + hook});
    expect_good_end(outcome, 4, hook[0] != 'p');
    deaths += static_cast<int>(outcome.deaths.size());
  }
  EXPECT_GE(deaths, 20);
}

// ---- to the bit -------------------------------------------------------------------------

TEST(Elastic, AfterADeathBetweenTwoStepsTheRunEqualsOneOfAsManyRanksFromThatState) {
  // The death is before step 0, so that the state is the one that both begin with.
  const Outcome shrunk = run({"-n", "3"}, {"kills=1", "samples=60", "epochs=2", "seed=5",
                                           "at=next:0:2", "hook=powersgd:rank=1"});
  const Outcome plain =
      run({"-n", "2"}, {"samples=60", "epochs=2", "seed=5", "hook=powersgd:rank=1"});
  expect_good_end(shrunk, 2, /*exact=*/false);
  expect_good_end(plain, 2, /*exact=*/false);
  ASSERT_EQ(shrunk.deaths.size(), 1U);
  EXPECT_EQ(shrunk.endings[0].hash, plain.endings[0].hash);
}

TEST(Elastic, TheDemonstrationSurvivesItsDeath) {
  const CommandResult result = testing::run_command(
      {built_program("brigade"), "demo", "--kill", "--hook", "fp16"}, within(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("2 workers go on"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("All 3 replicas are identical"), std::string::npos)
      << result.out;
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
