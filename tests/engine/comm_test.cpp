// A hook's uses of its Comm, except the collectives of engine_test.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "brigade/compose_hooks.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::make_bucket;
using testing::run_ranks;

class CommRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CommRanks, ::testing::Values(1, 2, 3));

// Rank r sends r + to + 1 values to rank `to`, all 100 r + to.
TEST_P(CommRanks, AllToAllWithLengthsBringsPartsOfAnyLength) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const auto part = [](int from, int to) {
      return at::full({from + to + 1}, 100.0 * from + to);
    };
    at::Tensor expected;
    const auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      std::vector<at::Tensor> leaving, coming;
      std::vector<int64_t> to, from;
      for (int other = 0; other < comm.size(); ++other) {
        leaving.push_back(part(comm.rank(), other));
        coming.push_back(part(other, comm.rank()));
        to.push_back(leaving.back().numel());
        from.push_back(coming.back().numel());
      }
      expected = at::cat(coming);
      at::Tensor input = at::cat(leaving), output = at::zeros_like(expected);
      co_await comm.all_to_all(input, to, output, from);
      if (!at::equal(output, expected)) throw Error("the parts are not right");
      co_return bucket.buffer();
    };
    auto engine = Engine::make(group, "lengths");
    engine->set_hook(make_hook("lengths", hook));
    engine->run(make_bucket(0, 1, at::ones({1})))->waitAndThrow();
    const int64_t sent = expected.numel() - (2 * group.rank() + 1);
    EXPECT_EQ(engine->stats().total.bytes_sent, 4 * sent);
    engine->close();
  });
}

TEST(Comm, AHookComputesWithAsManyThreadsAsTheProgramHasAskedFor) {
  run_ranks(2, [](ProcessGroup group) {
    const int asked = at::get_num_threads() + 1;
    at::set_num_threads(asked);
    // ATen's own function would set the number that it returns.
    const auto threads =
        reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    ASSERT_NE(threads, nullptr);
    std::vector<int> found;
    auto engine = Engine::make(group, "threads");
    const auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      found.push_back(threads());
      co_await comm.all_reduce(bucket.buffer());
      found.push_back(threads());  // of the next station
      co_return bucket.buffer();
    };
    engine->set_hook(make_hook("threads", hook));
    engine->run(make_bucket(0, 1, at::ones({1})))->waitAndThrow();
    EXPECT_EQ(found, std::vector<int>(2, asked));
    engine->close();
  });
}

TEST(Comm, RefusesLengthsThatDoNotFit) {
  run_ranks(2, [](ProcessGroup group) {
    const std::vector<std::vector<int64_t>> bad{{4}, {4, 1}, {-1, 5}, {2, 1, 1}};
    for (size_t mistake = 0; mistake < bad.size(); ++mistake) {
      auto engine = Engine::make(group.duplicate(), "bad");
      engine->set_hook(make_hook("bad", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
        at::Tensor output = at::zeros({4});
        const std::vector<int64_t> even{2, 2};
        co_await comm.all_to_all(bucket.buffer(), bad[mistake], output, even);
        co_return bucket.buffer();
      }));
      auto future = engine->run(make_bucket(0, 1, at::ones({4})));
      future->wait();
      const std::string text = future->tryRetrieveErrorMessage();
      EXPECT_NE(text.find("all_to_all: input"), std::string::npos) << mistake << text;
      engine->close();
    }
  });
}

TEST(Comm, AGroupScopeMakesAnyHookWorkAmongFewerRanks) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup pair = group.new_subgroups(2);
    auto engine = Engine::make(group, "pairs");
    engine->set_hook(make_hook("pairs", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      {
        GroupScope scope(comm, pair);
        if (comm.size() != 2 || comm.rank() != group.rank() % 2) throw Error("no pair");
        co_await average(bucket, comm);
      }
      if (comm.size() != 4 || comm.rank() != group.rank()) throw Error("not all again");
      at::Tensor all = bucket.buffer().clone();
      co_await comm.all_reduce(all);
      co_return at::cat({bucket.buffer().narrow(0, 0, 1), all.narrow(0, 0, 1)});
    }));
    for (int step = 0; step < 3; ++step) {
      auto future = engine->run(make_bucket(0, 1, at::full({2}, 1.0 * group.rank())));
      future->waitAndThrow();
      const at::Tensor expected = at::tensor({group.rank() < 2 ? 0.5F : 2.5F, 6.0F});
      EXPECT_TRUE(at::equal(future->value().toTensor(), expected));
    }
    engine->close();
  });
}

TEST_P(CommRanks, KnowsTheRanksOfItsHostAndWhatItsBackendDoes) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    auto engine = Engine::make(group, "host");
    engine->set_hook(make_hook("host", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      const ProcessGroup host = comm.host_group();
      if (host.size() != comm.size() || host.rank() != comm.rank()) throw Error("who?");
      if (comm.works_on_device()) throw Error("Gloo has no device");
      if (comm.runs_inline() != (comm.size() == 1)) throw Error("inline?");
      GroupScope scope(comm, host);
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    }));
    for (int step = 0; step < 2; ++step) {
      auto future = engine->run(make_bucket(0, 1, at::ones({2})));
      future->waitAndThrow();
      EXPECT_TRUE(at::equal(future->value().toTensor(),
                            at::full({2}, static_cast<float>(group.size()))));
    }
    engine->close();
  });
}

}  // namespace
}  // namespace brigade
