// Hooks that wait for something that is no collective.
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

#include "brigade/compose_hooks.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "engine/stations.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::kPatience;
using testing::make_bucket;
using testing::run_ranks;
using testing::served;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

// Expects the sum over the ranks of buckets that are all `value`.
void expect_sum(const Future& future, double value, int ranks) {
  future->waitAndThrow();
  const at::Tensor result = future->value().toTensor();
  EXPECT_TRUE(at::equal(result, at::full_like(result, value * ranks))) << result;
}

std::vector<Future> run_buckets(Engine& engine, size_t count) {
  std::vector<Future> futures;
  for (size_t index = 0; index < count; ++index) {
    // Buckets differ in length, so that a mix-up does not fit.
    at::Tensor buffer = at::full({4 + static_cast<int64_t>(index)}, 1.0 + index);
    futures.push_back(engine.run(make_bucket(index, count, buffer)));
  }
  return futures;
}

TEST(Semaphore, LetsAsManyBucketsInAsItHasPermits) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "permits");
    Semaphore two(2);
    std::atomic<int> inside = 0, most = 0;
    engine->set_hook(make_hook("two", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      const Semaphore::Permit permit = co_await two.acquire(comm);
      const int now = ++inside;
      if (now > most) most = now;
      co_await comm.all_reduce(bucket.buffer());
      at::Tensor again = at::ones({3});
      co_await comm.all_reduce(again);
      --inside;
      co_return bucket.buffer();
    }));
    for (int step = 0; step < 20; ++step) {
      const auto futures = run_buckets(*engine, 8);
      for (size_t index = 0; index < futures.size(); ++index)
        expect_sum(futures[index], 1.0 + static_cast<double>(index), group.size());
    }
    EXPECT_LE(most, 2);
    EXPECT_GE(most, 1);
    engine->close();
  });
}

// Rank 1 gets a permit, rank 0 must wait; both still issue collectives in the same order.
TEST(Semaphore, ABucketThatWaitsOnOneRankIsNotOvertaken) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "order");
    Semaphore permits(group.rank());
    std::binary_semaphore about_to_wait(0);
    std::vector<int64_t> order;  // written by the station's one thread
    engine->set_hook(make_hook("one", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      if (bucket.index() == 1) {
        about_to_wait.release();
        const Semaphore::Permit permit = co_await permits.acquire(comm);
      }
      order.push_back(bucket.index());
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    }));
    const auto futures = run_buckets(*engine, 4);
    ASSERT_TRUE(about_to_wait.try_acquire_for(kPatience));
    group.barrier();
    if (group.rank() == 0) permits.release();
    for (size_t index = 0; index < futures.size(); ++index)
      expect_sum(futures[index], 1.0 + static_cast<double>(index), group.size());
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
    engine->close();
  });
}

enum class Where { lane, lane_of_a_lane };
class SemaphoreLanes : public ::testing::TestWithParam<Where> {};
INSTANTIATE_TEST_SUITE_P(Lanes, SemaphoreLanes,
                         ::testing::Values(Where::lane, Where::lane_of_a_lane));

TEST_P(SemaphoreLanes, LanesBehindOneThatWaitsDoNotOvertakeIt) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "lanes");
    Semaphore permits(group.rank());
    std::binary_semaphore about_to_wait(0);
    const auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      std::vector<at::Tensor> ones;
      for (int64_t lane = 0; lane < 3; ++lane) ones.push_back(at::ones({3 + lane}));
      Comm::Body sum = [&](int, Comm& lane) -> Task<void> {
        about_to_wait.release();
        { const Semaphore::Permit permit = co_await permits.acquire(lane); }
        co_await lane.all_reduce(ones[0]);
      };
      Comm::Body body = [&](int index, Comm& lane) -> Task<void> {
        if (index > 0) {
          co_await lane.all_reduce(ones[index]);
        } else if (GetParam() == Where::lane_of_a_lane) {
          co_await lane.split(1, sum);
        } else {
          co_await sum(0, lane);
        }
      };
      co_await comm.split(3, body);
      for (const at::Tensor& one : ones) {
        if (!at::equal(one, at::full_like(one, comm.size()))) throw Error("mixed up");
      }
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    };
    engine->set_hook(make_hook("lanes", hook));
    const auto futures = run_buckets(*engine, 1);
    ASSERT_TRUE(about_to_wait.try_acquire_for(kPatience));
    group.barrier();
    if (group.rank() == 0) permits.release();
    expect_sum(futures[0], 1, group.size());
    engine->close();
  });
}

// No lane leaves the station, so the parent continues there.
TEST(Semaphore, LanesThatOnlyWaitEndAndTheNextBucketComesAfterThem) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "still");
    Semaphore permits(0);
    std::vector<int64_t> order;
    const auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      Comm::Body body = [&](int, Comm& lane) -> Task<void> {
        const Semaphore::Permit permit = co_await permits.acquire(lane);
      };
      if (bucket.index() == 0) co_await comm.split(3, body);
      order.push_back(bucket.index());
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    };
    engine->set_hook(make_hook("still", hook));
    const auto futures = run_buckets(*engine, 2);
    permits.release();
    expect_sum(futures[0], 1, group.size());
    expect_sum(futures[1], 2, group.size());
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1}));
    engine->close();
  });
}

Task<at::Tensor> acquire_and_keep(Semaphore& permits, Bucket bucket, Comm& comm) {
  const Semaphore::Permit permit = co_await permits.acquire(comm);
  co_await comm.all_reduce(bucket.buffer());
  co_return bucket.buffer();
}

TEST(Semaphore, NeverReleasedEndsAtTheDeadlineWithTheBucketsError) {
  run_ranks(2,
            [](ProcessGroup group) {
              auto engine = Engine::make(group, "never");
              Semaphore none(0);
              engine->set_hook(make_hook("stuck", [&](Bucket bucket, Comm& comm) {
                return acquire_and_keep(none, std::move(bucket), comm);
              }));
              auto future = run_buckets(*engine, 1)[0];
              future->wait();
              const std::string text = future->tryRetrieveErrorMessage();
              EXPECT_NE(text.find("hook 'stuck', bucket 0, step 0: not complete within the "
                                  "time limit of 2000 ms"),
                        std::string::npos)
                  << text;
              engine->close();
            },
            {.timeout = std::chrono::seconds(2)});
}

TEST(Semaphore, AnEngineThatIsClosedLeavesNoThreadBehindAndNobodyWaiting) {
  run_ranks(2, [](ProcessGroup group) {
    Semaphore permits(0);
    std::counting_semaphore<> came(0);
    auto hook = make_hook("waits", [&](Bucket bucket, Comm& comm) {
      came.release();
      return acquire_and_keep(permits, std::move(bucket), comm);
    });
    auto closed = Engine::make(group, "closed");
    closed->set_hook(hook);
    auto future = run_buckets(*closed, 1)[0];
    ASSERT_TRUE(came.try_acquire_for(kPatience));
    EXPECT_TRUE(served(0));
    closed->close();
    EXPECT_FALSE(served(0)) << "it was left behind, waiting";
    ASSERT_TRUE(future->completed());
    EXPECT_NE(future->tryRetrieveErrorMessage().find("the model was destroyed"),
              std::string::npos);
    closed.reset();

    permits.release();  // must not go to the bucket that is gone
    auto next = Engine::make(group, "next");
    next->set_hook(hook);
    for (int step = 0; step < 3; ++step)
      expect_sum(run_buckets(*next, 1)[0], 1, group.size());
    next->close();
  });
}

TEST(Semaphore, AloneAPermitThatIsFreeCostsNothingAndOneThatIsNotIsAnError) {
  run_ranks(1, [](ProcessGroup group) {
    for (int permits : {1, 0}) {
      auto engine = Engine::make(group.duplicate(), "alone");
      Semaphore semaphore(permits);
      engine->set_hook(make_hook("alone", [&](Bucket bucket, Comm& comm) {
        return acquire_and_keep(semaphore, std::move(bucket), comm);
      }));
      auto future = run_buckets(*engine, 1)[0];
      ASSERT_TRUE(future->completed());
      EXPECT_EQ(future->hasError(), permits == 0);
      if (future->hasError()) {
        const std::string text = future->tryRetrieveErrorMessage();
        EXPECT_NE(text.find("would wait for ever"), std::string::npos) << text;
      }
      engine->close();
    }
  });
}

class LatchRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LatchRanks, ::testing::Values(1, 2, 3));

TEST_P(LatchRanks, TheLastBucketWaitsForAllOthers) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    auto engine = Engine::make(group, "latch");
    std::shared_ptr<Latch> latch;
    std::atomic<int> done = 0;
    int seen = -1;
    const auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      if (bucket.index() == 0) latch = std::make_shared<Latch>(1);  // the last bucket's
      if (!bucket.is_last()) latch->add();
      const std::shared_ptr<Latch> mine = latch;
      co_await comm.all_reduce(bucket.buffer());
      for (int64_t more = bucket.index(); more < 4; ++more) {
        at::Tensor one = at::ones({1});
        co_await comm.all_reduce(one);
      }
      ++done;
      mine->count_down();
      if (bucket.is_last()) {
        co_await mine->wait(comm);
        seen = done;
        at::Tensor one = at::ones({1});
        co_await comm.all_reduce(one);
      }
      co_return bucket.buffer();
    };
    engine->set_hook(make_hook("latch", hook));
    for (int step = 0; step < 10; ++step) {
      done = 0;
      const auto futures = run_buckets(*engine, 5);
      for (size_t index = 0; index < futures.size(); ++index)
        expect_sum(futures[index], 1.0 + static_cast<double>(index), group.size());
      EXPECT_EQ(seen, 5);
    }
    engine->close();
  });
}

}  // namespace
}  // namespace brigade
