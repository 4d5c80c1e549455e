// The results that an elastic training of elastic_trainer has left.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/command.h"

namespace brigade {

using testing::CommandResult;

struct Ending {  // the report of one worker
  int rank = -1;
  int size = 0;
  int64_t steps = 0;
  int64_t kept = 0;
  std::string hash, hash_at, seen;
  std::string counted;  // by the ledgers: once, otherwise, or not
  int64_t lost = 0;     // the most passes that a survivor has lost
};

struct Death {
  int64_t ms = 0;
  int pid = 0;
  std::string where;
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
  std::vector<Death> deaths;

  auto died(const std::string& where) const {  // how many did
    return std::ranges::count(deaths, where, &Death::where);
  }

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

inline std::vector<Ending> endings_in(const std::string& out) {
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
    words >> word;  // the hash before it, or the next word
    if (word != "seen") {
      end.hash_at = word;
      words >> word;
    }
    words >> end.seen >> word >> word >> word >> end.counted >> word >> end.lost;
    found.push_back(end);
  }
  return found;
}

inline std::vector<Event> events_in(const std::string& folder) {
  std::vector<Event> found;
  std::ifstream events(folder + "/events");
  for (std::string line; std::getline(events, line);) {
    Event e;
    std::istringstream(line) >> e.ms >> e.pid >> e.generation >> e.members >> e.step >>
        e.lost >> e.bytes;
    found.push_back(e);
  }
  return found;
}

inline Outcome outcome_of(const CommandResult& command, const std::string& folder) {
  Outcome outcome{.command = command, .endings = endings_in(command.out)};
  outcome.events = events_in(folder);
  std::ifstream deaths(folder + "/deaths");
  for (std::string line; std::getline(deaths, line);) {
    Death death;
    std::istringstream(line) >> death.ms >> death.pid >> death.where;
    outcome.deaths.push_back(death);
  }
  return outcome;
}

// All workers that finished have the same parameters, every sample was trained once in each
// epoch, and nobody lost more than one pass in a failure. `exact`: the hook is, so that the
// parameters count the samples too.
inline void expect_good_end(const Outcome& outcome, int workers, bool exact = true) {
  EXPECT_EQ(outcome.command.exit_code, 0) << outcome.command.err;
  ASSERT_EQ(static_cast<int>(outcome.endings.size()), workers)
      << outcome.command.out << outcome.command.err;
  for (const Ending& end : outcome.endings) {
    EXPECT_EQ(end.hash, outcome.endings[0].hash) << "replicas differ";
    EXPECT_EQ(end.kept, end.steps) << "what was kept is of another step";
    EXPECT_TRUE(end.counted == "once" || end.counted == "not") << end.counted;
    EXPECT_LE(end.lost, 1) << "passes of one survivor in one failure";
    if (exact) {
      EXPECT_EQ(end.seen, "once") << "of rank " << end.rank;
    }
  }
}

}  // namespace brigade
