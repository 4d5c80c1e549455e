// The page of what a rank printed, while workers of an attempt come and go.
#include <gtest/gtest.h>
#include <unistd.h>

#include "group/live/rank_page.h"
#include "group/store/mailbox.h"
#include "launch/attempt.h"
#include "launch/watch/job_view.h"
#include "support/command.h"

namespace brigade::launching {
namespace {

constexpr std::chrono::seconds kLimit{60};

// Starts so many further workers with rank 0, at once.
class Replacing : public Steward {
 public:
  explicit Replacing(int further) : further_(further) {}
  int first_number() const override { return 0; }
  void started(int, int) override {}
  bool goes_on_without(int, bool, const base::Cause&) override { return true; }
  Wishes turn() override {
    return {.start = std::vector<int>(static_cast<size_t>(std::exchange(further_, 0)), 0)};
  }
  const std::string& over() const override { return over_; }
  bool is_member(int) const override { return true; }
  bool must_stay() const override { return false; }
  std::chrono::milliseconds patience() const override {
    return std::chrono::milliseconds(10);
  }

 private:
  int further_;
  const std::string over_;
};

// Of rank 0, when all workers are over. In the script, $number is the worker's, and $page
// where its losses are shown.
std::optional<group::RankStatus> printed_by(const std::string& script, int further = 0) {
  const testing::TemporaryFolder folder;
  StatusFolder status({.host = "here", .pid = getpid(), .workers = 1});
  Replacing steward(further);
  HeldSignals signals;
  WorkerFamily family(unique_mark());
  Watcher watcher(family, {});
  LaunchOptions options;
  options.wall = kLimit;
  AttemptPlan plan;
  plan.workers = 1;
  plan.folder = folder.path();
  plan.grace = kLimit;
  plan.environment = [&](int) {
    return std::map<std::string, std::string>{{WorkerFamily::kMarkName, family.mark()}};
  };
  plan.steward = &steward;
  plan.status = &status;
  const std::string names = "number=$" + std::string(group::kWorkerNumber) + "; page=${" +
                            group::kStatusFile + "}_printed; cd " + folder.path() + "; ";
  const WorkerBody body{.command = {"sh", "-c", names + script}, .path = "/bin/sh"};
  const AttemptResult result = run_attempt(plan, body, options, signals, family, watcher);
  EXPECT_TRUE(result.good()) << result.over;
  const auto page = group::read_rank_page(printed_page_of(status.path(), 0));
  if (!page) return std::nullopt;
  return page->status;
}

TEST(PrintedLossPage, IsTheReplacementsWhateverTheOldWorkerStillPrints) {
  const auto seen = printed_by(
      "if [ $number = 0 ]; then while [ ! -e second ]; do sleep 0.01; done; "
      "echo loss 7; touch first; "
      "else touch second; while [ ! -e first ]; do sleep 0.01; done; echo loss 2; fi",
      /*further=*/1);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->loss, 2);
  EXPECT_EQ(seen->losses, 1);
}

TEST(PrintedLossPage, IsMadeLaterWhereItCouldNotBeMade) {
  const auto seen =
      printed_by("mkdir $page; echo loss 7; sleep 0.5; rmdir $page; echo loss 2");
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->loss, 2);
  EXPECT_EQ(seen->losses, 2);
}

}  // namespace
}  // namespace brigade::launching
