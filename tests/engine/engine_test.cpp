#include "engine/engine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/exception_text.h"
#include "engine/buckets.h"
#include "engine/failure/timed_group.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::make_bucket;
using testing::run_ranks;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

at::Tensor ramp(int64_t n, int rank, int64_t step, int64_t bucket) {
  return at::arange(n, at::kDouble) + static_cast<double>(1000 * rank + 10 * step + bucket);
}
at::Tensor ramp_sum(int64_t n, int ranks, int64_t step, int64_t bucket) {
  at::Tensor sum = at::zeros({n}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += ramp(n, rank, step, bucket);
  return sum;
}

void doze(std::mt19937& random, int microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % microseconds));
}

// Each bucket has a different number of collectives, of different kinds, and some have
// lanes. Delays differ from rank to rank and bucket to bucket.
Task<at::Tensor> wandering(Bucket bucket, Comm& comm) {
  std::mt19937 random(
      static_cast<unsigned>(comm.rank() * 7919 + bucket.index() * 31 + comm.step()));
  at::Tensor sum = bucket.buffer().clone();
  doze(random, 150);
  switch (bucket.index() % 5) {
    case 0:
      co_await comm.all_reduce(sum);
      break;
    case 1: {  // gather and add up
      at::Tensor all = at::empty({comm.size(), sum.numel()}, sum.options());
      co_await comm.all_gather(sum, all);
      doze(random, 150);
      sum = all.sum(0);
      at::Tensor check = at::ones({1});
      co_await comm.all_reduce(check);
      break;
    }
    case 2: {  // reduce-scatter, gather, and one more
      at::Tensor part = at::empty({sum.numel() / comm.size()}, sum.options());
      co_await comm.reduce_scatter(sum, part);
      doze(random, 150);
      co_await comm.all_gather(part, sum);
      doze(random, 150);
      co_await comm.broadcast(sum, static_cast<int>(bucket.index()) % comm.size());
      break;
    }
    case 3:  // too small: no collective at all, the mean is a formula
      sum = ramp_sum(sum.numel(), comm.size(), comm.step(), bucket.index());
      break;
    case 4: {  // three lanes of 1, 0 and 2 collectives, then a tail of one
      std::vector<at::Tensor> parts = sum.chunk(2);
      Comm::Body body = [&](int lane, Comm& own) -> Task<void> {
        if (lane == 0) co_await own.all_reduce(parts[0]);
        if (lane == 2) {
          at::Tensor all = at::empty({own.size() * parts[1].numel()}, sum.options());
          co_await own.all_gather(parts[1], all);
          parts[1].copy_(all.view({own.size(), -1}).sum(0));
          co_await own.broadcast(parts[1], 0);
        }
      };
      co_await comm.split(3, body);
      at::Tensor check = at::ones({2});
      co_await comm.all_reduce(check);
      if (check[0].item<double>() != comm.size()) throw Error("a tail went wrong");
      break;
    }
  }
  bucket.buffer().copy_(sum);
  co_return bucket.buffer();
}

class EngineRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineRanks, ::testing::Values(1, 2, 3, 4));

void wander(ProcessGroup group, int buckets, int64_t iterations) {
  auto engine = Engine::make(group, "wander");
  engine->set_hook(make_hook("wandering", wandering));
  const int64_t n = 12 * group.size();
  for (int64_t step = 0; step < iterations; ++step) {
    std::vector<Future> futures;
    for (int64_t index = 0; index < buckets; ++index) {
      futures.push_back(
          engine->run(make_bucket(index, buckets, ramp(n, group.rank(), step, index))));
    }
    for (int64_t index = 0; index < buckets; ++index) {
      futures[index]->waitAndThrow();
      ASSERT_TRUE(at::equal(futures[index]->value().toTensor(),
                            ramp_sum(n, group.size(), step, index)))
          << "step " << step << ", bucket " << index;
    }
  }
  engine->close();
}

TEST_P(EngineRanks, HooksOfDifferentLengthsGiveExactSumsWithAnyNumberOfBuckets) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    for (int buckets : {1, 2, 5, 12}) wander(group.duplicate(), buckets, 5);
  });
}

TEST(Engine, ManyIterationsOfThirtyBucketsOnFourRanksAreExact) {
  const int iterations = testing::brief_or_long(100, 500);
  run_ranks(4, [=](ProcessGroup group) { wander(group, 30, iterations); },
            {.wall = std::chrono::minutes(4)});
}

TEST_P(EngineRanks, AnExceptionOnOneRankIsSeenByAll) {
  for (const char* where : {"first stretch", "second stretch", "lane"}) {
    run_ranks(GetParam(), [where](ProcessGroup group) {
      auto engine = Engine::make(group, "fail");
      const int culprit = group.size() - 1;
      const std::string place = where;
      auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
        const bool now = comm.rank() == culprit && bucket.index() == 1;
        if (now && place == "first stretch") throw std::runtime_error("ouch");
        co_await comm.all_reduce(bucket.buffer());
        if (now && place == "second stretch") throw std::runtime_error("ouch");
        Comm::Body body = [&](int lane, Comm& own) -> Task<void> {
          if (now && lane == 1 && place == "lane") throw std::runtime_error("ouch");
          at::Tensor one = at::ones({1});
          co_await own.all_reduce(one);
        };
        co_await comm.split(2, body);
        co_return bucket.buffer();
      };
      engine->set_hook(make_hook("clumsy", hook));
      std::vector<Future> futures;
      try {
        for (int index = 0; index < 3; ++index)
          futures.push_back(engine->run(make_bucket(index, 3, at::ones({4}))));
      } catch (const HookError&) {
        // with one rank the failure is known before the next bucket starts
      }
      std::string text;
      for (auto& future : futures) {
        try {
          future->waitAndThrow();
        } catch (const std::exception& error) {
          text = error.what();
        }
      }
      EXPECT_EQ(text, "rank " + std::to_string(culprit) +
                          ": hook 'clumsy', bucket 1, step 0: ouch");
      EXPECT_THROW(engine->run(make_bucket(0, 3, at::ones({4}))), HookError)
          << "the first cause is kept";
      engine->close();
    });
  }
}

// Awaits for ever.
struct Never {
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<>) {}
  void await_resume() {}
};

TEST(Engine, AHookThatNeverCompletesFailsAtItsDeadline) {
  run_ranks(2,
            [](ProcessGroup group) {
              auto engine = Engine::make(group, "never");
              engine->set_hook(
                  make_hook("sleepy", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
                    co_await comm.all_reduce(bucket.buffer());
                    if (bucket.index() == 1) co_await Never{};
                    co_return bucket.buffer();
                  }));
              auto first = engine->run(make_bucket(0, 2, at::ones({4})));
              auto second = engine->run(make_bucket(1, 2, at::ones({4})));
              first->wait();
              std::string text;
              try {
                second->waitAndThrow();
              } catch (const std::exception& error) {
                text = error.what();
              }
              EXPECT_NE(text.find("hook 'sleepy', bucket 1, step 0: not complete within "
                                  "the time limit of 4000 ms"),
                        std::string::npos)
                  << text;
              engine->close();
            },
            {.timeout = std::chrono::seconds(4)});
}

TEST(Engine, AMissingRankEndsInATimeoutNotAHang) {
  run_ranks(2,
            [](ProcessGroup group) {
              auto engine = Engine::make(group, "missing");
              engine->set_hook(
                  make_hook("allreduce", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
                    co_await comm.all_reduce(bucket.buffer());
                    co_return bucket.buffer();
                  }));
              engine->run(make_bucket(0, 1, at::ones({4})))->wait();  // connects
              group.barrier();
              if (group.rank() == 0) {
                auto future = engine->run(make_bucket(0, 1, at::ones({4})));
                EXPECT_THROW(future->waitAndThrow(), std::exception);
                group.store()->set("thrown", std::string("1"));
              } else {
                group.store()->wait({"thrown"}, std::chrono::seconds(20));
              }
              engine->close();
            },
            {.timeout = std::chrono::seconds(4)});
}

TEST(Engine, ARankThatIsStoppedInAStepIsNamedByTheOthers) {
  run_ranks(
      3,
      [](ProcessGroup group) {
        const auto pids = group.gather_texts("pids", std::to_string(getpid()));
        auto engine = Engine::make(group, "stopped");
        engine->set_hook(make_hook("mean", average));
        const auto reduce = [&] {
          engine->run(make_bucket(0, 1, at::ones({4})))->waitAndThrow();
        };
        reduce();
        if (group.rank() == 1) raise(SIGSTOP);
        std::string text;
        try {
          reduce();
        } catch (const HookError& error) {
          text = error.what();
          EXPECT_EQ(error.kind(), Failure::timeout) << text;
          EXPECT_EQ(error.rank(), 1) << text;
        }
        // Only now may it go on, and gets the same error.
        if (group.rank() == 0) kill(std::stoi(pids[1]), SIGCONT);
        EXPECT_NE(text.find("nothing is heard of rank 1: stopped, lost"), std::string::npos)
            << text;
        EXPECT_NE(text.find("hook 'mean', bucket 0, step 1"), std::string::npos) << text;
      },
      {.timeout = std::chrono::seconds(2)});
}

TEST(Engine, DifferentHooksAreFoundOutBeforeTheFirstBucket) {
  run_ranks(3, [](ProcessGroup group) {
    auto engine = Engine::make(group, "different");
    engine->set_hook(make_hook(group.rank() == 1 ? "bf16" : "fp16", wandering));
    try {
      engine->run(make_bucket(0, 1, at::ones({4})));
      FAIL() << "no exception";
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'bf16' on ranks 1"), std::string::npos) << text;
      EXPECT_NE(text.find("'fp16' on ranks 0, 2"), std::string::npos) << text;
    }
  });
}

TEST(Engine, DifferentHooksAreComparedAgainUntilTheyAgree) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "again");
    engine->set_hook(make_hook(group.rank() == 1 ? "bf16" : "fp16", wandering));
    for (int turn = 0; turn < 3; ++turn)
      EXPECT_THROW(engine->run(make_bucket(0, 1, at::ones({4}))), MismatchError) << turn;
    EXPECT_FALSE(engine->busy());
    engine->set_hook(make_hook("fp16", wandering));
    auto future = engine->run(make_bucket(0, 1, at::ones({4})));
    future->waitAndThrow();
    EXPECT_TRUE(at::equal(future->value().toTensor(), at::full({4}, 2.0)));
    engine->close();
  });
}

TEST_P(EngineRanks, AResultOfTheWrongSizeOrTypeIsAnErrorWithBothSizes) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    for (bool size : {true, false}) {
      auto engine = Engine::make(group.duplicate(), "wrong");
      engine->set_hook(make_hook("wrong", [size](Bucket bucket, Comm&) -> Task<at::Tensor> {
        co_return size ? at::ones({5}) : bucket.buffer().to(at::kHalf);
      }));
      auto future = engine->run(make_bucket(0, 1, at::ones({4})));
      try {
        future->waitAndThrow();
        ADD_FAILURE() << "no exception";
      } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("the bucket has 4 elements of float"),
                  std::string::npos)
            << error.what();
      }
      engine->close();
    }
  });
}

TEST_P(EngineRanks, CountsBytesAndCollectives) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    auto engine = Engine::make(group, "count");
    engine->set_hook(make_hook("half", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      at::Tensor half = bucket.buffer().to(at::kHalf);
      co_await comm.all_reduce(half);
      co_return bucket.buffer().copy_(half);
    }));
    for (int step = 0; step < 3; ++step) {
      std::vector<Future> futures;
      for (int index = 0; index < 2; ++index)
        futures.push_back(engine->run(make_bucket(index, 2, at::ones({1200}))));
      for (auto& future : futures) future->wait();
    }
    const HookStats stats = engine->stats();
    const int64_t sent = 2 * (2 * 2400 * (group.size() - 1) / group.size());
    EXPECT_EQ(stats.last_step.bytes_before, 2 * 4800);
    EXPECT_EQ(stats.last_step.bytes_sent, sent);
    EXPECT_EQ(stats.last_step.collectives, 2);
    EXPECT_EQ(stats.total.steps, 3);
    EXPECT_EQ(stats.total.bytes_sent, 3 * sent);
    EXPECT_GE(stats.total.overlap(), 0);
    EXPECT_LE(stats.total.overlap(), 1);
    engine->close();
  });
}

TEST_P(EngineRanks, AllToAllBringsEachRankWhatTheOthersHaveForIt) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int64_t size = group.size();
    auto engine = Engine::make(group, "all_to_all");
    engine->set_hook(make_hook("swap", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      at::Tensor output = at::empty_like(bucket.buffer());
      co_await comm.all_to_all(bucket.buffer(), output);
      co_return output;
    }));
    // Three values for each rank: 100 from + 10 to, and 0, 1 and 2.
    const at::Tensor ranks = at::arange(size, at::kFloat).view({-1, 1});
    const at::Tensor counts = at::arange(3, at::kFloat).view({1, -1});
    at::Tensor mine = (100 * group.rank() + 10 * ranks + counts).view({-1}).contiguous();
    auto future = engine->run(make_bucket(0, 1, mine));
    future->waitAndThrow();
    const at::Tensor expected = (100 * ranks + 10 * group.rank() + counts).view({-1});
    EXPECT_TRUE(at::equal(future->value().toTensor(), expected));
    EXPECT_EQ(engine->stats().total.bytes_sent, 12 * (size - 1));
    engine->close();
  });
}

TEST(Engine, RefusesAnotherHookWhileABucketIsUnderWay) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "busy");
    std::atomic<bool> refused{false};
    auto hook = make_hook("slow", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      refused.wait(false);
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    });
    engine->set_hook(hook);
    auto future = engine->run(make_bucket(0, 1, at::ones({4})));
    EXPECT_THROW(engine->set_hook(hook), Error);
    refused = true;
    refused.notify_all();
    future->waitAndThrow();
    group.barrier();
    EXPECT_NO_THROW(engine->set_hook(hook));
    engine->close();
  });
}

TEST(Engine, RefusesTensorsThatAreNotContiguousAndPartsThatDoNotFit) {
  run_ranks(2, [](ProcessGroup group) {
    for (int mistake = 0; mistake < 3; ++mistake) {
      auto engine = Engine::make(group.duplicate(), "layout");
      engine->set_hook(
          make_hook("careless", [mistake](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
            at::Tensor grid = at::ones({4, 4});
            at::Tensor three = at::ones({3});
            if (mistake == 0) co_await comm.all_reduce(grid.t().slice(0, 0, 2));
            if (mistake == 1) co_await comm.all_gather(grid, grid);
            if (mistake == 2) co_await comm.all_to_all(three, three);
            co_return bucket.buffer();
          }));
      auto future = engine->run(make_bucket(0, 1, at::ones({4})));
      EXPECT_THROW(future->waitAndThrow(), std::exception) << mistake;
      engine->close();
    }
  });
}

// Times are given, so the test takes none.
TEST(CollectivesInFlight, ACollectiveCountsFromTheEndOfTheOneBefore) {
  using InFlight = engine::TimedGroup::InFlight;
  using torch_port::LiveWork;
  InFlight in_flight;
  const auto at = [](int seconds) {
    return InFlight::Clock::time_point(std::chrono::seconds(seconds));
  };
  std::vector<Future> futures;
  const auto begin = [&](int seconds) {
    futures.push_back(c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get()));
    auto work = c10d::Work::create_from_future(futures.back());
    EXPECT_EQ(in_flight.begin(c10::make_intrusive<LiveWork>(work), at(seconds)),
              futures.size() - 1);
  };
  const auto end = [&](size_t number, int seconds) {
    futures[number]->markCompleted(at::ones({1}));
    in_flight.end(number, *futures[number], at(seconds));
  };
  EXPECT_FALSE(in_flight.oldest());
  begin(10);
  begin(11);
  EXPECT_EQ(in_flight.oldest()->started, at(10));
  end(0, 30);
  EXPECT_EQ(in_flight.oldest()->started, at(30)) << "until then it had to wait";
  end(1, 31);
  EXPECT_FALSE(in_flight.oldest());
  begin(40);
  begin(41);
  EXPECT_EQ(in_flight.oldest()->started, at(40));
  // A failed collective comes first.
  int woken = 0;
  in_flight.wake = [&] { ++woken; };
  futures[3]->setError(std::make_exception_ptr(Error("cut")));
  in_flight.end(3, *futures[3], at(42));
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(base::text_of(in_flight.oldest()->error), "cut");
  EXPECT_EQ(in_flight.oldest()->started, at(41));
}

}  // namespace
}  // namespace brigade
