#include "brigade/process_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/error.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;

class ProcessGroupRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroupRanks, ::testing::Values(1, 2, 3, 4));

// Expects the sum of rank + 1 over all ranks, on the given group.
void expect_sum(const ProcessGroup& group) {
  at::Tensor x = at::full({5}, group.rank() + 1.0);
  group.all_reduce(x);
  EXPECT_EQ(x[4].item<double>(), group.size() * (group.size() + 1) / 2.0);
}

TEST_P(ProcessGroupRanks, AllReduceSums) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) { expect_sum(group); });
}

TEST_P(ProcessGroupRanks, BroadcastTakesTheRootsValues) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    for (int root = 0; root < group.size(); ++root) {
      at::Tensor x = at::full({3}, group.rank() * 10.0);
      group.broadcast(x, root);
      EXPECT_EQ(x[0].item<double>(), root * 10.0);
    }
    EXPECT_THROW(group.broadcast(at::zeros({1}), group.size()), ConfigError);
  });
}

TEST_P(ProcessGroupRanks, ExchangeGivesEveryRanksText) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    auto all = group.gather_texts("name", "rank " + std::to_string(group.rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(all[rank], "rank " + std::to_string(rank));
    }
  });
}

TEST_P(ProcessGroupRanks, ExchangeAndBarrierLeaveNothingInTheStore) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    auto keys = [&] {
      // Rank 0 returns from a barrier last, so the others have no key left at that moment.
      group.barrier();
      return group.rank() == 0 ? group.store()->getNumKeys() : 0;
    };
    auto before = keys();
    group.gather_texts("again", "");
    for (int i = 0; i < 20; ++i) group.gather_texts("again", std::string(100, 'x'));
    auto after = keys();
    if (group.size() == 1) return;
    // Others may be in the next exchange already, with one key each and a counter.
    EXPECT_LE(after, before + group.size() + 2);
    group.barrier();
  });
}

TEST_P(ProcessGroupRanks, DuplicatesAreIndependentGroups) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    ProcessGroup one = group.duplicate();
    ProcessGroup two = one.duplicate();
    EXPECT_EQ(two.rank(), group.rank());
    EXPECT_EQ(two.size(), group.size());
    EXPECT_EQ(two.backend(), group.backend());
    // Ranks use the two in different orders.
    std::vector<ProcessGroup> order{one, two};
    if (group.rank() % 2) std::swap(order[0], order[1]);
    std::vector<at::Tensor> x{at::ones({4})}, y{at::ones({4})};
    auto first = order[0].c10d()->allreduce(x);
    auto second = order[1].c10d()->allreduce(y);
    first->wait();
    second->wait();
    EXPECT_EQ(x[0][0].item<double>(), group.size());
    EXPECT_EQ(y[0][0].item<double>(), group.size());
  });
}

TEST(ProcessGroup, NewGroupHasTheGivenRanksInTheGivenOrder) {
  testing::run_ranks(4, [](ProcessGroup group) {
    ProcessGroup some = group.new_group({3, 1, 0});
    ProcessGroup one = group.new_group({2});
    EXPECT_EQ(static_cast<bool>(some), group.rank() != 2);
    EXPECT_EQ(static_cast<bool>(one), group.rank() == 2);
    if (one) {
      EXPECT_EQ(one.backend(), "solo");
      expect_sum(one);
      return;
    }
    EXPECT_EQ(some.rank(), group.rank() == 3 ? 0 : group.rank() == 1 ? 1 : 2);
    EXPECT_EQ(some.size(), 3);
    expect_sum(some);
    expect_sum(some.new_group({0, 1, 2}));
  });
}

TEST(ProcessGroup, NewGroupRefusesBadRanks) {
  testing::run_ranks(2, [](ProcessGroup group) {
    EXPECT_THROW(group.new_group({}), ConfigError);
    EXPECT_THROW(group.new_group({0, 2}), ConfigError);
    EXPECT_THROW(group.new_group({-1}), ConfigError);
    EXPECT_THROW(group.new_group({1, 1}), ConfigError);
    expect_sum(group.new_group({1, 0}));
  });
}

TEST(ProcessGroup, SubgroupsAreConsecutiveRanksOrThoseOfOneHost) {
  testing::run_ranks(4, [](ProcessGroup group) {
    ProcessGroup pair = group.new_subgroups(2);
    EXPECT_EQ(pair.size(), 2);
    EXPECT_EQ(pair.rank(), group.rank() % 2);
    at::Tensor x = at::full({1}, static_cast<double>(group.rank()));
    pair.all_reduce(x);
    EXPECT_EQ(x.item<double>(), group.rank() < 2 ? 1 : 5);
    ProcessGroup host = group.new_subgroups();
    EXPECT_EQ(host.size(), 4);
    EXPECT_EQ(host.local_rank(), group.rank());
    EXPECT_THROW(group.new_subgroups(3), ConfigError);
    EXPECT_THROW(group.new_subgroups(0), ConfigError);
  });
}

TEST(ProcessGroup, KnowsWhichRanksShareAHost) {
  const testing::RankOptions shared{.hosts = {4, 7, 4, 7, 4}};
  const auto body = [](ProcessGroup group) {
    const HostLayout& layout = group.layout();
    EXPECT_EQ(layout.text(), "2 hosts x 2 of 2 to 3 ranks");
    EXPECT_TRUE(layout.shares_hosts());
    EXPECT_EQ(layout.host_of, (std::vector<int>{0, 1, 0, 1, 0}));
    EXPECT_EQ(layout.ranks, (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3}}));
    EXPECT_EQ(layout.host, group.rank() % 2);
    EXPECT_EQ(layout.place, group.rank() / 2);
    EXPECT_EQ(group.local_rank(), layout.place);
    EXPECT_EQ(group.local_size(), 3 - layout.host);
    EXPECT_EQ(layout.cross_host_ranks().empty(), group.rank() == 4);
    const ProcessGroup host = group.new_subgroups();
    EXPECT_EQ(host.size(), 3 - layout.host);
    EXPECT_FALSE(host.layout().shares_hosts());
    expect_sum(host);
    // A group with a name is made by its members only, in any order.
    if (const auto cross_host_ranks = layout.cross_host_ranks();
        !cross_host_ranks.empty()) {
      const ProcessGroup place = group.new_group(cross_host_ranks, "place");
      EXPECT_EQ(place.layout().text(), "2 hosts x 1 rank");
      EXPECT_EQ(place.rank(), layout.host);
      expect_sum(place);
    }
    EXPECT_EQ(ProcessGroup::wrap(group.c10d()).layout().text(), "1 host x 5 ranks");
  };
  testing::run_ranks(5, body, shared);
  testing::run_ranks(2, [](ProcessGroup group) {
    EXPECT_EQ(group.layout().text(), "1 host x 2 ranks");
    EXPECT_FALSE(group.layout().shares_hosts());
  });
}

TEST(ProcessGroup, RefusesTensorsThatGlooWouldMisread) {
  testing::run_ranks(2, [](ProcessGroup group) {
    EXPECT_THROW(group.all_reduce(at::ones({4, 4}).t()), ConfigError);
    EXPECT_THROW(group.all_reduce(at::ones({1}).expand({4})), ConfigError);
    EXPECT_THROW(group.broadcast(at::ones({8}).slice(0, 0, 8, 2)), ConfigError);
    EXPECT_THROW(group.all_reduce(at::Tensor()), ConfigError);
    expect_sum(group);
  });
}

TEST(ProcessGroup, BarrierNamesTheRanksThatDidNotCome) {
  testing::run_ranks(4, [](ProcessGroup group) {
    if (group.rank() == 1 || group.rank() == 3) {
      return group.store()->wait({"seen/0", "seen/2"}, 20s);
    }
    group.store()->set("here/" + std::to_string(group.rank()), std::string("1"));
    group.store()->wait({"here/0", "here/2"}, 20s);
    try {
      group.barrier(2s);
      ADD_FAILURE() << "the barrier was passed";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(std::string(error.what()),
                "barrier: ranks 1 and 3 of 4 did not come within 2 s; all had met before: "
                "stopped, lost, or elsewhere in the program");
    }
    group.store()->set("seen/" + std::to_string(group.rank()), std::string("1"));
  });
}

TEST(ProcessGroup, RanksThatMakeDifferentCallsAreToldSo) {
  testing::run_ranks(2, [](ProcessGroup group) {
    try {
      group.gather_texts(group.rank() == 0 ? "model" : "hook", "");
      ADD_FAILURE() << "the mix-up was not noticed";
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'model of 2 ranks'"), std::string::npos) << text;
      EXPECT_NE(text.find("'hook of 2 ranks'"), std::string::npos) << text;
    }
  });
}

TEST(ProcessGroup, RanksThatDoNotAgreeAreAllToldTheFirstLineThatDiffers) {
  testing::run_ranks(3, [](ProcessGroup group) {
    EXPECT_NO_THROW(group.check_same("apples", "green\nsour", "take the same"));
    const auto refused = [&](const std::string& mine) -> std::string {
      try {
        group.check_same("apples", mine, "take the same");
      } catch (const MismatchError& error) {
        return error.what();
      }
      return "no exception";
    };
    EXPECT_EQ(
        refused(group.rank() == 1 ? "red" : "green"),
        "the ranks have different apples:\n  'green' on ranks 0, 2\n  'red' on ranks 1"
        "\ntake the same");
    EXPECT_EQ(
        refused(std::string("green\n") + (group.rank() == 2 ? "sweet" : "sour") +
                "\nripe\n"),
        "the ranks have different apples:\n  'sour' on ranks 0, 1\n  'sweet' on ranks 2"
        "\ntake the same");
    EXPECT_EQ(refused(group.rank() == 0 ? "green\n" : "green\nsour\n"),
              "the ranks have different apples:\n  '' on ranks 0\n  'sour' on ranks 1, 2"
              "\ntake the same");
  });
}

TEST(ProcessGroup, ABarrierHoldsUntilTheLastHasCome) {
  testing::run_ranks(3, [](ProcessGroup group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(200ms);
      group.store()->set("last", std::string("here"));
    }
    group.barrier();
    EXPECT_TRUE(group.store()->check({"last"}));
  });
}

TEST(ProcessGroup, ACollectiveWithoutItsPeersTimesOut) {
  const testing::RankOptions short_limit{.timeout = 4s};
  auto body = [](ProcessGroup group) {
    if (group.rank() == 0) {
      EXPECT_THROW(group.all_reduce(at::ones({4})), TimeoutError);
    }
    group.barrier(20s);
  };
  testing::run_ranks(2, body, short_limit);
}

// Gloo would end the process if it were refused a descriptor on its own thread.
TEST(ProcessGroup, WithoutDescriptorsForItsConnectionsAnotherGroupIsRefused) {
  testing::run_ranks(2, [](ProcessGroup group) {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const int next = dup(0);  // the first number that is free
    close(next);
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next) + 6;
    setrlimit(RLIMIT_NOFILE, &few);
    try {
      group.duplicate();
      ADD_FAILURE() << "it has come about";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what())
                    .find("too few file descriptors are left for the "
                          "connections of 2 ranks: 6 of the 10"),
                std::string::npos)
          << error.what();
    }
    setrlimit(RLIMIT_NOFILE, &before);
    expect_sum(group);
  });
}

TEST(ProcessGroup, WrapsAGroupThatSomebodyElseMade) {
  testing::run_ranks(3, [](ProcessGroup group) {
    ProcessGroup first = ProcessGroup::wrap(group.c10d());
    ProcessGroup second = ProcessGroup::wrap(group.c10d());
    EXPECT_EQ(first.backend(), "gloo");
    EXPECT_EQ(first.rank(), group.rank());
    EXPECT_EQ(first.timeout(), group.timeout());
    EXPECT_EQ(first.local_size(), 3);
    EXPECT_EQ(first.c10d(), group.c10d());
    // Neither sees the other's keys.
    EXPECT_EQ(first.gather_texts("a", "first")[2], "first");
    EXPECT_EQ(second.gather_texts("a", "second")[2], "second");
    expect_sum(first);
    expect_sum(second.duplicate());
    first.barrier();
    EXPECT_THROW(ProcessGroup::wrap(nullptr), ConfigError);
  });
}

// Each rank drops a group as soon as it has it, while others may still be connecting.
TEST(ProcessGroup, OneThatIsLeftAtOnceIsConnectedOnAllRanks) {
  testing::run_ranks(4, [](ProcessGroup group) {
    for (int round = 0; round < 30; ++round) EXPECT_EQ(group.duplicate().size(), 4);
  });
}

// Every rank destroys some groups in its own random order; rank 0, which may host the
// store, sometimes ends first.
TEST(ProcessGroup, TeardownWorksInAnyOrder) {
  for (int round = 0; round < 50; ++round) {
    testing::run_ranks(2 + round % 2, [round](ProcessGroup group) {
      std::vector<ProcessGroup> groups{group, group.duplicate(), group.new_subgroups()};
      groups.push_back(groups[1].duplicate());
      group = {};
      for (ProcessGroup& each : groups) expect_sum(each);
      std::mt19937 random(round * 7 + groups[0].rank());
      std::shuffle(groups.begin(), groups.end(), random);
      while (!groups.empty()) {
        groups.pop_back();
        if (random() % 3 == 0) std::this_thread::sleep_for(2ms);
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace brigade
