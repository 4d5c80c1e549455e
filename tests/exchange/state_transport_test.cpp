#include "exchange/state_transport.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace brigade {
namespace {

using testing::run_ranks;

TEST(StateTransport, EveryRankGetsWhatAllHaveSentToIt) {
  run_ranks(3, [](ProcessGroup group) {
    StateByRank mine;
    for (int to = 0; to < group.size(); ++to) {
      if (group.rank() == 1 && to == 2) continue;  // rank 2 gets nothing
      const std::string name = "from." + std::to_string(group.rank());
      mine[to].tensors[name] = at::full({2, 3}, 10 * group.rank() + to, at::kDouble);
      mine[to].tensors[name + ".empty"] = at::empty({0, 4}, at::kLong);
      mine[to].values[name] = "for:" + std::to_string(to);
      mine[to].values["shared"] = std::to_string(group.rank());
    }
    const NamedState got = exchange_states(group, mine, at::kCPU);
    for (int from = 0; from < group.size(); ++from) {
      const std::string name = "from." + std::to_string(from);
      if (from == 1 && group.rank() == 2) {
        EXPECT_FALSE(got.tensors.contains(name));
        EXPECT_FALSE(got.values.contains(name));
        continue;
      }
      EXPECT_TRUE(at::equal(got.tensors.at(name),
                            at::full({2, 3}, 10 * from + group.rank(), at::kDouble)));
      EXPECT_EQ(got.tensors.at(name + ".empty").sizes(), at::IntArrayRef({0, 4}));
      EXPECT_EQ(got.tensors.at(name + ".empty").scalar_type(), at::kLong);
      EXPECT_EQ(got.values.at(name), "for:" + std::to_string(group.rank()));
    }
    EXPECT_EQ(got.values.at("shared"), "2");  // the highest rank wins
  });
}

}  // namespace
}  // namespace brigade
