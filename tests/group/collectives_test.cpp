// A program's collectives on tensors and numbers over a group. One set of workers runs many
// cases.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "brigade/error.h"
#include "brigade/process_group.h"
#include "support/ranks.h"

namespace brigade {
namespace {

class GroupCollectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GroupCollectives, ::testing::Values(1, 2, 3));

// Rank r has the values (r + 1) * {1, 2, 3}.
at::Tensor own_values(const ProcessGroup& group) {
  return at::tensor({1.0, 2.0, 3.0}) * (group.rank() + 1);
}

void expect_reductions(const ProcessGroup& group) {
  const double n = group.size();
  double factorial = 1;
  for (int rank = 1; rank <= group.size(); ++rank) factorial *= rank;
  const std::pair<Reduce, double> cases[] = {{Reduce::sum, n * (n + 1) / 2 * 2},
                                             {Reduce::mean, (n + 1) / 2 * 2},
                                             {Reduce::min, 2},
                                             {Reduce::max, 2 * n},
                                             {Reduce::product, factorial * std::pow(2, n)}};
  for (const auto& [how, second] : cases) {
    at::Tensor values = own_values(group);
    group.all_reduce(values, how);
    EXPECT_DOUBLE_EQ(values[1].item<double>(), second);
    // Gives part r of every rank's (n, 3) tensor, which has the rank's values in every row.
    const at::Tensor rows = own_values(group).expand({group.size(), 3}).contiguous();
    const at::Tensor part = group.reduce_scatter(rows, how);
    EXPECT_EQ(part.sizes(), at::IntArrayRef({1, 3}));
    EXPECT_DOUBLE_EQ(part[0][1].item<double>(), second);
  }
  at::Tensor whole = at::ones({2}, at::kLong);
  group.all_reduce(whole, Reduce::max);
  EXPECT_THROW(group.all_reduce(whole, Reduce::mean), ConfigError);
  if (group.size() > 1) {
    EXPECT_THROW(group.reduce_scatter(at::ones({group.size() + 1})), ConfigError);
  }
}

void expect_gathered(const ProcessGroup& group) {
  const auto check = [&](const std::vector<at::Tensor>& all) {
    ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
    for (int rank = 0; rank < group.size(); ++rank)
      EXPECT_TRUE(at::equal(all[rank], at::tensor({1.0, 2.0, 3.0}) * (rank + 1)));
  };
  check(group.all_gather(own_values(group)));
  const int root = group.size() - 1;
  const auto at_root = group.gather(own_values(group), root);
  if (group.rank() == root) {
    check(at_root);
  } else {
    EXPECT_TRUE(at_root.empty());
  }
  EXPECT_THROW(group.gather(own_values(group), group.size()), ConfigError);
}

void expect_sent_round(const ProcessGroup& group) {
  EXPECT_THROW(group.send(own_values(group), group.rank()), ConfigError);
  EXPECT_THROW(group.send(own_values(group), group.size()), ConfigError);
  if (group.size() == 1) return;
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  at::Tensor received = at::zeros({3}, at::kDouble);
  if (group.rank() == 0) group.send(own_values(group), next);
  group.receive(received, before);
  if (group.rank() != 0) group.send(received, next);
  EXPECT_TRUE(at::equal(received, at::tensor({1.0, 2.0, 3.0})));
}

void expect_numbers(const ProcessGroup& group) {
  const double n = group.size(), mine = group.rank() + 1;
  EXPECT_DOUBLE_EQ(group.sum(mine), n * (n + 1) / 2);
  EXPECT_DOUBLE_EQ(group.mean(mine), (n + 1) / 2);
  EXPECT_DOUBLE_EQ(group.mean(at::scalar_tensor(mine, at::kFloat)), (n + 1) / 2);
  EXPECT_DOUBLE_EQ(group.min(mine), 1);
  EXPECT_DOUBLE_EQ(group.max(mine), n);
  EXPECT_EQ(group.sum({mine, 1, 0.5}), (std::vector<double>{n * (n + 1) / 2, n, 0.5 * n}));
  EXPECT_EQ(group.mean(std::vector<double>{mine, 4}),
            (std::vector<double>{(n + 1) / 2, 4}));
  EXPECT_THROW(group.mean(at::ones({2})), ConfigError);
  EXPECT_TRUE(group.any(group.rank() == group.size() - 1));
  EXPECT_FALSE(group.any(false));
  EXPECT_TRUE(group.all(true));
  EXPECT_FALSE(group.all(group.rank() != 0));
}

void expect_rank0_alone(const ProcessGroup& group) {
  int calls = 0;
  group.rank0([&] { ++calls; });
  EXPECT_EQ(calls, group.rank() == 0 ? 1 : 0);
  ::testing::internal::CaptureStdout();
  group.print("epoch %d: %.2f\n", 3, 0.25);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(printed, group.rank() == 0 ? "epoch 3: 0.25\n" : "");
}

// A page shows it.
bool end_epoch(const ProcessGroup& group, int epoch, const at::Tensor& loss, double right,
               double seen, bool stop) {
  const double mean_loss = group.mean(loss);
  const std::vector<double> counts = group.sum({right, seen});  // several at once
  group.print("epoch %d: loss %.4f, %.1f %% right\n", epoch, mean_loss,
              100 * counts[0] / counts[1]);  // rank 0 only
  return group.any(stop);                    // all stop, or none
}

TEST_P(GroupCollectives, ReduceGatherSendAndCountOverAllRanks) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    expect_reductions(group);
    expect_gathered(group);
    expect_sent_round(group);
    expect_numbers(group);
    expect_rank0_alone(group);
    const bool stop = group.rank() == 0;
    EXPECT_TRUE(end_epoch(group, 1, at::scalar_tensor(0.5), 3, 4, stop));
  });
}

TEST(GroupCollective, ARankThatDoesNotComeIsATimeout) {
  testing::run_ranks(2,
                     [](ProcessGroup group) {
                       if (group.rank() == 1) {
                         // No rank sends.
                         at::Tensor received = at::zeros({3});
                         const auto began = std::chrono::steady_clock::now();
                         EXPECT_THROW(group.receive(received, 0), TimeoutError);
                         EXPECT_GE(std::chrono::steady_clock::now() - began,
                                   std::chrono::milliseconds(900));
                       }
                       group.barrier(std::chrono::seconds(15));
                     },
                     {.timeout = std::chrono::seconds(1)});
}

}  // namespace
}  // namespace brigade
