#include "launch/workers/printed_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace brigade::launching {
namespace {

TEST(PrintedLoss, IsTheNumberBehindTheWord) {
  const std::vector<std::pair<std::string, double>> lines{
      {"loss 0.31", 0.31},
      {"epoch 5: loss 0.000412", 0.000412},
      {"step 3 train_loss=1.5e-3, acc 0.9", 1.5e-3},
      {"Loss: -2", -2},
      {"{'loss': 1}, loss:  \t+4.25.", 4.25},
      {"floss 7 | loss scale 65536 | test loss 0.5 s", 0.5},
      {"loss=inf", INFINITY},
  };
  for (const auto& [line, loss] : lines) EXPECT_EQ(printed_loss(line), loss) << line;
  const auto not_a_number = printed_loss("loss nan");
  EXPECT_TRUE(not_a_number && std::isnan(*not_a_number));
}

TEST(PrintedLoss, IsNotThereWithoutBoth) {
  for (const char* line : {"", "loss", "loss:", "loss0.5", "lossless 3", "no loss today",
                           "gloss 3", "loss 3x", "loss of 3 packets", "los 3"})
    EXPECT_EQ(printed_loss(line), std::nullopt) << line;
  EXPECT_EQ(printed_loss(std::string(5000, ' ') + "loss 1"), std::nullopt);
}

TEST(PrintedLoss, CountsThoseThatAreNoNumbers) {
  PrintedLosses out, err;
  out.add(0.5);
  out.add(NAN);
  out.add(0.25);
  err.add(7);
  const PrintedLosses both = out.with(err);
  EXPECT_EQ(both.count, 4);
  EXPECT_EQ(both.bad, 1);
  EXPECT_EQ(both.last, 0.25);
  EXPECT_EQ(PrintedLosses{}.with(err).last, 7);
}

}  // namespace
}  // namespace brigade::launching
