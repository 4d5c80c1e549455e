// The hook that chooses, over a real link that changes while it trains.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "brigade/brigade.h"
#include "brigade/launch.h"
#include "hooks/auto/auto_hook.h"
#include "hooks/bag.h"
#include "support/command.h"
#include "support/network_cable.h"
#include "support/network_namespaces.h"

namespace brigade {
namespace {

using testing::NetworkCable;
using testing::Rig;
using SteadyClock = std::chrono::steady_clock;

// At 100 Mbit/s an exact step takes 131 ms, a step with int8 takes 34 ms.
constexpr int64_t kLinkedValues = 400'000;
constexpr std::chrono::seconds kLinkLimit{40};

// The lines of all choices, in order: "step 32: chose int8: …".
std::vector<std::string> choices(const std::vector<std::string>& history) {
  std::vector<std::string> lines;
  for (const std::string& line : history)
    if (line.find(": chose ") != std::string::npos) lines.push_back(line);
  return lines;
}

std::string chosen(const std::string& line) {
  const size_t begin = line.find(": chose ") + 8;
  return line.substr(begin, line.find(':', begin) - begin);
}

using History = std::vector<std::string>;

// Trains whole windows, equally many on all ranks, until rank 0 finds that it is there, by
// the history and the seconds of a step in the last window. Returns those of one more
// window. Throws when this takes too long.
double train_until(Rig& rig, const std::function<bool(const History&, double)>& is_there) {
  const auto end = SteadyClock::now() + kLinkLimit;
  const auto window = [&] {
    const auto begin = SteadyClock::now();
    for (int64_t step = 0; step < kAutoWindow; ++step) rig.train_on(rig.inputs(0));
    return std::chrono::duration<double>(SteadyClock::now() - begin).count() / kAutoWindow;
  };
  for (;;) {
    const double seconds = window();
    const HookStats stats = rig.ddp->hook_stats();
    const bool there = is_there(stats.history, seconds);
    const bool late = SteadyClock::now() > end;
    at::Tensor state = at::full({1}, there ? 1 : late ? 2 : 0, at::kLong);
    rig.group.broadcast(state, 0);
    if (state.item<int64_t>() == 1) return window();
    if (state.item<int64_t>() == 2) {
      std::string text = "not there; the last step took " + std::to_string(seconds) + " s:";
      for (const std::string& line : stats.history) text += "\n" + line;
      throw std::runtime_error(text);
    }
  }
}
double train_until_chosen(Rig& rig, size_t often) {
  return train_until(rig, [&](const History& history, double) {
    return choices(history).size() >= often;
  });
}

void write_lines(const std::string& path, const std::vector<std::string>& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

void expect_in_worker(bool is_so, const std::string& what) {
  if (!is_so) throw std::runtime_error(what);
}

void train_over(const NetworkCable& cable, int rank, const std::string& folder) {
  const std::string errors = folder + "/errors" + std::to_string(rank);
  expect_in_worker(dup2(open(errors.c_str(), O_CREAT | O_WRONLY, 0600), 2) == 2, "dup2");
  const ProcessGroup group = cable.join(rank, 2);
  Rig rig(group, "auto", {{kLinkedValues}}, at::kFloat, {.bucket_cap_mb = 25});
  const double slow = train_until_chosen(rig, 1);
  group.barrier();
  if (rank == 0) cable.limit("10gbit");
  group.barrier();
  train_until_chosen(rig, 2);
  // Other work on the same cores may make a single window slow.
  train_until(rig, [&](const History&, double quick) { return quick < 0.7 * slow; });
  if (rank == 0) write_lines(folder + "/history", rig.ddp->hook_stats().history);
}

TEST(AutoOverALink, CompressesWhereItPaysAndLooksAgainWhenTheLinkBecomesQuick) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const NetworkCable cable;
  cable.limit("100mbit");
  const testing::TemporaryFolder folder;
  setenv("OMP_NUM_THREADS", "1", 0);
  std::string failure;
  try {
    launch(2, [&](int rank) { train_over(cable, rank, folder.path()); },
           {.grace = std::chrono::milliseconds(500),
            .wall = std::chrono::milliseconds(140'000),
            .prefix = false});
  } catch (const LaunchError& error) {
    failure = error.what();
  }
  std::string all;
  for (int rank : {0, 1}) {
    for (const std::string& line :
         lines_of(folder.path() + "/errors" + std::to_string(rank)))
      all += line + "\n";
  }
  ASSERT_EQ(failure, "") << all;

  const std::vector<std::string> history = lines_of(folder.path() + "/history");
  const std::vector<std::string> made = choices(history);
  ASSERT_GE(made.size(), 2u);
  EXPECT_EQ(chosen(made[0]), "int8") << made[0];
  EXPECT_TRUE(std::ranges::any_of(history, [](const std::string& line) {
    return line.find("looking again") != std::string::npos;
  }));
  // Before the first choice there is the one bucket.
  EXPECT_NE(history[0].find(": exposed a step: bucket 0: "), std::string::npos)
      << history[0];
  EXPECT_NE(history[1].find(": trying fp16: "), std::string::npos) << history[1];
  // Only rank 0 writes a line, for each choice that differs from the previous one.
  std::vector<std::string> expected, told;
  for (size_t index = 0; index < made.size(); ++index) {
    if (index == 0 || chosen(made[index]) != chosen(made[index - 1]))
      expected.push_back("brigade: auto, " + made[index]);
  }
  for (int rank : {0, 1}) {
    for (const std::string& line :
         lines_of(folder.path() + "/errors" + std::to_string(rank)))
      if (line.starts_with("brigade: ")) told.push_back(line);
  }
  EXPECT_EQ(told, expected);
}

}  // namespace
}  // namespace brigade
