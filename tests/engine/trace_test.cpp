// The engine's trace of each bucket.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "brigade/brigade.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::make_bucket;
using testing::run_ranks;
using Kind = TraceEvent::Kind;

constexpr int kBuckets = 3;

Task<at::Tensor> two_collectives(Bucket bucket, Comm& comm) {
  co_await comm.all_reduce(bucket.buffer());
  at::Tensor again = at::ones({2});
  co_await comm.all_reduce(again);
  co_return bucket.buffer();
}

void one_step(Engine& engine) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (int index = 0; index < kBuckets; ++index)
    futures.push_back(engine.run(make_bucket(index, kBuckets, at::ones({8}))));
  for (auto& future : futures) future->waitAndThrow();
}

std::vector<TraceEvent> trace_of(const ProcessGroup& group, bool on) {
  auto engine = Engine::make(group, on ? "on" : "off");
  engine->set_hook(make_hook("two", two_collectives));
  engine->trace().record(on);
  one_step(*engine);
  engine->close();  // the threads have ended, so the trace is complete
  std::vector<TraceEvent> events;
  engine->trace().move_to(events);
  return events;
}

TEST(Trace, HasEveryStretchAndCollectiveOfEveryBucket) {
  run_ranks(2, [](ProcessGroup group) {
    const std::vector<TraceEvent> events = trace_of(group, true);
    const auto count = [&](Kind kind, int station) {
      return std::ranges::count_if(events, [&](const TraceEvent& event) {
        return event.kind == kind && event.station == station;
      });
    };
    for (int station : {0, 1, 2}) {
      EXPECT_EQ(count(Kind::compute, station), kBuckets) << station;
      EXPECT_EQ(count(Kind::collective, station), station < 2 ? kBuckets : 0) << station;
    }
    EXPECT_EQ(events.size(), 5U * kBuckets);
    for (const TraceEvent& event : events) {
      EXPECT_LE(event.ready, event.begin);
      EXPECT_LE(event.begin, event.end);
      EXPECT_EQ(event.step, 0);
      EXPECT_EQ(event.lane, -1);
      const std::int64_t sent = event.station == 0 ? 32 : 8;  // two ranks: each byte once
      EXPECT_EQ(event.bytes, event.kind == Kind::collective ? sent : 0);
    }
  });
}

TEST(Trace, OfABucketFollowsItsWay) {
  run_ranks(2, [](ProcessGroup group) {
    std::vector<TraceEvent> events = trace_of(group, true);
    std::erase_if(events, [](const TraceEvent& event) { return event.bucket != 1; });
    std::ranges::sort(events, {}, &TraceEvent::end);
    std::erase_if(events, [](const TraceEvent& e) { return e.kind == Kind::collective; });
    ASSERT_EQ(events.size(), 3U);
    for (int station : {0, 1, 2}) EXPECT_EQ(events[station].station, station);
  });
}

TEST(Trace, IsEmptyUnlessAskedFor) {
  run_ranks(2, [](ProcessGroup group) { EXPECT_TRUE(trace_of(group, false).empty()); });
}

TEST(Trace, OfAModelOutlivesAnExchangeOfItsHook) {
  run_ranks(2, [](ProcessGroup group) {
    torch::nn::Linear net(4, 4);
    DistributedDataParallel ddp(net, group);
    ddp->core().record_trace(true);
    ddp->set_hook(make_hook("fp16"));
    const auto step = [&] { ddp->forward(at::ones({2, 4})).sum().backward(); };
    step();
    ddp->set_hook(nullptr);
    EXPECT_GE(ddp->core().take_trace().size(), 3U);
    EXPECT_TRUE(ddp->core().take_trace().empty());
    ddp->set_hook(make_hook("fp16"));
    step();
    EXPECT_FALSE(ddp->core().take_trace().empty());
  });
}

}  // namespace
}  // namespace brigade
