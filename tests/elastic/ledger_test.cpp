// Checks the other tests' counting, with ledgers of jobs that went well, and wrong.
#include "elastic/ledger.h"

#include <gtest/gtest.h>

#include "support/command.h"

namespace brigade {
namespace {

using elastic_ledger::Books;
using testing::TemporaryFolder;

// Two ranks, one sample for each rank and step, four samples, one epoch. Rank 1 dies in
// step 1, which rank 0 repeats alone.
class Ledgers : public ::testing::Test {
 protected:
  void write(const std::string& pid, const std::string& text) const {
    std::ofstream(folder_.path() + "/ledger." + pid) << text;
  }
  Books books() const { return Books(folder_.path()); }

  const std::string begin_ = "start 0\npass 0 0 0 5 2 3\ndone 0 0 6\npass 0 1 0 7 2 1\n";
  const std::string again_ = "pass 1 1 0 8 1 1\ndone 1 1 9\npass 1 2 0 9 1 0\ndone 1 2 9\n";
  const TemporaryFolder folder_;
};

TEST_F(Ledgers, CountWhatWasTriedAgainOnce) {
  write("10", begin_ + again_);
  write("11", "start 0\npass 0 0 0 5 2 2\ndone 0 0 6\npass 0 1 0 7 2 0\npass 0 1 0 7");
  EXPECT_TRUE(books().every_sample_once(4, 1));
  EXPECT_EQ(books().most_lost(), 1);
}

TEST_F(Ledgers, FindASampleThatWasTrainedTwiceOrNever) {
  write("11", "start 0\npass 0 0 0 5 2 2\ndone 0 0 6\n");
  write("10", begin_ + "pass 1 1 0 8 1 1\ndone 1 1 9\npass 1 2 0 9 1 1\ndone 1 2 9\n");
  EXPECT_FALSE(books().every_sample_once(4, 1)) << "1 twice, 0 never";
  write("10", begin_ + "pass 1 1 0 8 1 1\ndone 1 1 9\n");
  EXPECT_FALSE(books().every_sample_once(4, 1)) << "0 never";
  EXPECT_TRUE(books().every_sample_once(4, 0)) << "the epoch is not over";
}

TEST_F(Ledgers, FindAStepThatWasDoneWithoutARank) {
  write("10", begin_ + again_);
  EXPECT_FALSE(books().every_sample_once(4, 0));
}

TEST_F(Ledgers, FindWorkThatWasLostThoughASurvivorHadDoneIt) {
  write("11", "start 0\npass 0 0 0 5 2 2\ndone 0 0 6\n");
  write("10", begin_ + "pass 1 0 0 8 1 3\ndone 1 0 9\npass 1 1 0 9 1 1\ndone 1 1 9\n");
  EXPECT_EQ(books().most_lost(), 2);
}

}  // namespace
}  // namespace brigade
