#include <gtest/gtest.h>

#include <semaphore>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "engine/buckets.h"
#include "engine/comm/all_to_all_messages.h"
#include "engine/engine.h"
#include "engine/stations.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::AllToAllMessages;
using engine::Engine;
using testing::kPatience;
using testing::make_bucket;
using testing::run_ranks;
using testing::served;

// Rank `from` sends rank `to` as many values as `to` + `from`, so rank 0 keeps none for
// itself.
at::Tensor part(int from, int to) {
  return at::full({from + to}, 100.0 * from + to, at::kDouble);
}

TEST(AllToAllMessages, BringPartsOfAnyLengthAndKeepTheirOrder) {
  run_ranks(3, [](ProcessGroup group) {
    std::vector<std::shared_ptr<AllToAllMessages>> under_way;
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> leaving, coming;
    std::vector<int64_t> to, from;
    for (int other = 0; other < group.size(); ++other) {
      leaving.push_back(part(group.rank(), other));
      coming.push_back(part(other, group.rank()));
      to.push_back(leaving.back().numel());
      from.push_back(coming.back().numel());
    }
    const at::Tensor expected = at::cat(coming);
    for (int turn = 0; turn < 5; ++turn) {
      outputs.push_back(at::zeros_like(expected));
      under_way.push_back(AllToAllMessages::start(*group.c10d(),
                                                  at::cat(leaving) + 1000.0 * turn, to,
                                                  outputs.back(), from, kPatience));
    }
    for (int turn = 0; turn < 5; ++turn) {
      under_way[turn]->wait();
      EXPECT_TRUE(at::equal(outputs[turn], expected + 1000.0 * turn)) << turn;
    }
  });
}

TEST(AllToAllMessages, AbortedDoNotWaitForARankThatSendsNothing) {
  run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 0) {
      at::Tensor output = at::zeros({4});
      auto transfers = AllToAllMessages::start(*group.c10d(), at::ones({0}), {0, 0}, output,
                                               {0, 4}, kPatience);
      transfers->abort();
      EXPECT_THROW(transfers->wait(), Error);
      EXPECT_THROW(transfers->wait(), Error) << "it stays so";
    }
    group.barrier();
  });
}

Task<at::Tensor> swap(Bucket bucket, Comm& comm) {
  at::Tensor other = at::empty_like(bucket.buffer());
  co_await comm.all_to_others(bucket.buffer(), other);
  co_return other;
}

TEST(AllToAllMessages, AnEngineThatIsClosedDoesNotWaitForThem) {
  run_ranks(2, [](ProcessGroup group) {
    auto engine = Engine::make(group, "closed");
    engine->set_hook(make_hook("swap", swap));
    engine->run(make_bucket(0, 1, at::ones({4})))->waitAndThrow();  // connects
    group.barrier();
    if (group.rank() == 0) {
      auto future = engine->run(make_bucket(0, 1, at::ones({4})));
      EXPECT_TRUE(served(1));
      engine->close();
      EXPECT_FALSE(served(1)) << "it was left behind, waiting";
      ASSERT_TRUE(future->completed());
      EXPECT_NE(future->tryRetrieveErrorMessage().find("the model was destroyed"),
                std::string::npos)
          << future->tryRetrieveErrorMessage();
    }
    group.barrier();
    engine->close();
  });
}

TEST(AllToAllMessages, AMissingRankEndsInATimeoutNotAHang) {
  run_ranks(2,
            [](ProcessGroup group) {
              auto engine = Engine::make(group, "missing");
              engine->set_hook(make_hook("swap", swap));
              engine->run(make_bucket(0, 1, at::ones({4})))->waitAndThrow();  // connects
              group.barrier();
              if (group.rank() == 0) {
                const auto begin = engine::Clock::now();
                auto future = engine->run(make_bucket(0, 1, at::ones({4})));
                future->wait();
                EXPECT_GE(engine::Clock::now() - begin, group.timeout());
                const std::string text = future->tryRetrieveErrorMessage();
                EXPECT_NE(text.find("hook 'swap', bucket 0, step 1"), std::string::npos)
                    << text;
                EXPECT_NE(text.find("imed out waiting"), std::string::npos) << text;
                group.store()->set("thrown", std::string("1"));
              } else {
                group.store()->wait({"thrown"}, kPatience);
              }
              engine->close();
            },
            {.timeout = std::chrono::seconds(2)});
}

// The parts of bucket 0 end only after bucket 1 has passed the stations that they left.
TEST(AllToAllMessages, ABucketDoesNotWaitForTheEndOfTheOneBeforeItAtStationsThatHasLeft) {
  for (const bool nested : {false, true}) {
    run_ranks(2, [nested](ProcessGroup group) {
      std::counting_semaphore<> second_stretch(0);
      bool came = true;
      auto hook = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
        at::Tensor other = at::empty_like(bucket.buffer());
        Comm::Body part = [&](int, Comm& lane) -> Task<void> {
          co_await lane.all_to_others(bucket.buffer(), other);
          co_await lane.all_to_others(other, bucket.buffer());
          came = second_stretch.try_acquire_for(kPatience);
        };
        Comm::Body around = [&](int, Comm& lane) -> Task<void> {
          co_await lane.split(1, part);
        };
        if (bucket.index() == 0) {
          co_await comm.split(1, nested ? around : part);
        } else {
          co_await comm.all_to_others(bucket.buffer(), other);
          second_stretch.release();
        }
        co_return bucket.buffer();
      };
      auto engine = Engine::make(group, "flow");
      engine->set_hook(make_hook("flow", hook));
      auto first = engine->run(make_bucket(0, 2, at::ones({4})));
      auto second = engine->run(make_bucket(1, 2, at::ones({4})));
      first->waitAndThrow();
      second->waitAndThrow();
      EXPECT_TRUE(came);
      engine->close();
    });
  }
}

}  // namespace
}  // namespace brigade
