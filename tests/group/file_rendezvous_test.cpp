// Ranks that meet in a folder: file://.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "brigade/process_group.h"
#include "group/store/file_store.h"
#include "launch/child.h"
#include "support/command.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;
using group::Deadline;
using group::FileMeeting;
using group::PunctualFileStore;
using namespace testing;

class FileRendezvous : public ::testing::Test {
 protected:
  ProcessGroupOptions options(int rank, int size,
                              std::chrono::milliseconds timeout = kNever) const {
    return {.backend = "gloo",
            .init_method = "file://" + folder_,
            .rank = rank,
            .world_size = size,
            .timeout = timeout};
  }
  std::vector<Outcome> run(int size) const {
    std::vector<std::unique_ptr<Child>> children;
    for (int rank = size - 1; rank >= 0; --rank) {
      children.push_back(
          std::make_unique<Child>(Variables{}, [&] { join_and_sum(options(rank, size)); }));
    }
    std::vector<Outcome> outcomes;
    for (auto& child : children) outcomes.push_back(child->finish());
    return outcomes;
  }
  Outcome alone(int rank, std::chrono::milliseconds timeout = kNever) const {
    Child child({}, [&] { init_process_group(options(rank, 2, timeout)); });
    return child.finish();
  }

  const testing::TemporaryFolder base_;
  const std::string folder_ = base_.path() + "/meet";
};

TEST_F(FileRendezvous, RanksMeetAgainAndAgainAndLeaveNothing) {
  for (int size : {2, 4, 3}) {
    expect_all_well(run(size));
    EXPECT_TRUE(std::filesystem::is_empty(base_.path()));
  }
}

TEST_F(FileRendezvous, WhatADeadRunLeftIsCleared) {
  mkdir(folder_.c_str(), 0700);
  std::ofstream(folder_ + "/lock") << "/store-1-1\n";
  std::ofstream(folder_ + "/store-1-1") << "half a rec";
  expect_all_well(run(2));
  EXPECT_TRUE(std::filesystem::is_empty(base_.path()));
}

TEST_F(FileRendezvous, WhatAKilledRunLeftIsCleared) {
  std::vector<std::unique_ptr<Child>> children;
  for (int rank : {0, 1}) {
    children.push_back(std::make_unique<Child>(Variables{}, [&, rank] {
      const ProcessGroup group = init_process_group(options(rank, 2));
      raise(SIGKILL);
    }));
  }
  for (auto& child : children) child->finish();
  EXPECT_FALSE(std::filesystem::is_empty(folder_)) << "the killed have left nothing";
  expect_all_well(run(2));
  EXPECT_TRUE(std::filesystem::is_empty(base_.path()));
}

TEST_F(FileRendezvous, WhatIsNotOursIsRefused) {
  std::ofstream(folder_) << "a file of the user's";
  expect_outcome(alone(0), 3, {folder_, "no folder"});
  std::filesystem::remove(folder_);
  mkdir(folder_.c_str(), 0755);
  chmod(folder_.c_str(), 0755);
  expect_outcome(alone(0), 3, {folder_, "open to others"});
  chmod(folder_.c_str(), 0700);
  std::ofstream(folder_ + "/thesis.tex") << "precious";
  expect_outcome(alone(0), 3, {folder_, "thesis.tex"});
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/thesis.tex"));
}

TEST_F(FileRendezvous, AFolderInUseIsRefused) {
  Child first({}, [&] { init_process_group(options(0, 2)); });
  for (int i = 0; i < 10'000 && !std::filesystem::exists(folder_ + "/lock"); ++i)
    std::this_thread::sleep_for(5ms);
  expect_outcome(alone(0), 3, {folder_, "another run is using it"});
}

TEST_F(FileRendezvous, AMissingRankIsNamed) {
  expect_outcome(alone(1, 1s), 3, {folder_, "rank 0 did not come"});
  expect_outcome(alone(0, 1s), 4, {"rank 1 of 2 did not come"});
  EXPECT_TRUE(std::filesystem::is_empty(base_.path()));
}

// However they go: c10d's own store leaves its file behind when two close it at once.
TEST_F(FileRendezvous, WhoeverLeavesLastRemovesTheFolder) {
  constexpr int kRanks = 3;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::unique_ptr<FileMeeting>> meetings;
    std::vector<c10::intrusive_ptr<c10d::Store>> stores;
    for (int rank = 0; rank < kRanks; ++rank) {
      meetings.push_back(std::make_unique<FileMeeting>(folder_, rank, Deadline::max()));
      EXPECT_EQ(meetings[rank]->store_file(), meetings[0]->store_file());
      stores.push_back(
          c10::make_intrusive<PunctualFileStore>(meetings[rank]->store_file()));
    }
    std::vector<std::thread> leaving;
    for (int rank = 0; rank < kRanks; ++rank) {
      leaving.emplace_back(
          [store = std::move(stores[rank]), meeting = std::move(meetings[rank])]() mutable {
            store.reset();
            meeting.reset();
          });
    }
    for (std::thread& each : leaving) each.join();
    ASSERT_TRUE(std::filesystem::is_empty(base_.path())) << "round " << round;
  }
}

TEST_F(FileRendezvous, ATruncatedRecordDoesNotHangForEver) {
  Child first({}, [&] {
    ProcessGroup group = init_process_group(options(0, 2));
    // A length without its bytes, as a writer that was killed leaves it.
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename().string().rfind("store-", 0) != 0) continue;
      std::ofstream file(entry.path(), std::ios::app | std::ios::binary);
      const size_t length = 1000;
      file.write(reinterpret_cast<const char*>(&length), sizeof length);
    }
    group.store()->setTimeout(500ms);
    group.store()->get("anything");
  });
  Child second({}, [&] {
    ProcessGroup group = init_process_group(options(1, 2));
    while (true) pause();
  });
  expect_outcome(first.finish(), 1, {"does not answer: get of"});
}

}  // namespace
}  // namespace brigade
