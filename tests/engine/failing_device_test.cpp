// A device that fails at any point while a bucket is under way: the bucket's future has the
// error, and nothing waits or ends for it. The last event belongs to the future, which
// records it when it is complete already; then the next pass has the error.
#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "brigade/compose_hooks.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using ::testing::HasSubstr;
using testing::make_bucket;
using testing::run_ranks;

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);
c10::DeviceIndex devices = 0;  // none, for the other tests of this program
int records_left = 0;     // events that can be recorded before the device fails, for good
int reads_left = 0;       // events that can be waited for before it fails
double device_clock = 0;  // ms from any event to any later one

// Streams and events of a device that computes nothing, of the type that LibTorch reserves
// for foreign devices.
struct FailingDevice : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (records_left == 0) throw std::runtime_error("the device has failed");
    --records_left;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {
    if (reads_left == 0) throw std::runtime_error("the device has failed");
    --reads_left;
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return device_clock; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FailingDevice)

// Its values are never read.
at::Tensor on_device(std::vector<float>& values) {
  devices = 1;
  return at::from_blob(
      values.data(), {static_cast<int64_t>(values.size())}, [](void*) {},
      at::TensorOptions(at::kFloat).device(kDevice), kDevice);
}

// Records events wherever a hook can: in lanes, for a permit, at a latch.
std::shared_ptr<Hook> busy_hook() {
  return make_hook("busy", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    Semaphore one(1);
    Latch both(2);
    Comm::Body body = [&](int, Comm& lane) -> Task<void> {
      const Semaphore::Permit permit = co_await one.acquire(lane);
      both.count_down();
    };
    co_await comm.split(2, body);
    co_await both.wait(comm);
    co_return bucket.buffer();
  });
}

struct Outcome {
  bool completed, busy;
  std::string error;
};

Outcome run_with(const ProcessGroup& group, int records) {
  const auto engine = Engine::make(group, "device" + std::to_string(records));
  engine->set_hook(busy_hook(), /*agreed=*/true);
  std::vector<float> values(8);
  records_left = records;
  const auto future = engine->run(make_bucket(0, 1, on_device(values)));
  Outcome outcome{future->completed(), engine->busy(), ""};
  if (outcome.completed && future->hasError()) {
    outcome.error = future->tryRetrieveErrorMessage();
  } else {
    try {
      engine->throw_if_any_rank_failed();
    } catch (const HookError& error) {
      outcome.error = error.what();
    }
  }
  engine->close();
  return outcome;
}

TEST(FailingDevice, FailsTheBucketWhereverItFails) {
  run_ranks(1, [](ProcessGroup group) {
    constexpr int kPlenty = 1000;
    const Outcome good = run_with(group, kPlenty);
    const int needed = kPlenty - records_left;
    EXPECT_TRUE(good.completed);
    EXPECT_EQ(good.error, "");
    ASSERT_GE(needed, 10);
    for (int records = 0; records < needed; ++records) {
      SCOPED_TRACE(records);
      const Outcome outcome = run_with(group, records);
      EXPECT_TRUE(outcome.completed) << "who waits for the bucket waits for ever";
      EXPECT_FALSE(outcome.busy);
      EXPECT_THAT(outcome.error,
                  ::testing::AllOf(HasSubstr("hook 'busy', bucket 0, step 0"),
                                   HasSubstr("the device has failed")));
    }
  });
}

TEST(FailingDevice, IsHeardOfOnTheOtherRanks) {
  run_ranks(2, [](ProcessGroup group) {
    const auto engine = Engine::make(group, "heard");
    engine->set_hook(busy_hook());
    engine->check_same();
    std::vector<float> values(8);
    records_left = 0;
    if (group.rank() == 1) {
      const auto future = engine->run(make_bucket(0, 1, on_device(values)));
      EXPECT_TRUE(future->completed());
      EXPECT_TRUE(future->hasError());
      EXPECT_FALSE(engine->busy());
    }
    group.barrier();
    try {
      engine->throw_if_any_rank_failed();
      ADD_FAILURE() << "nothing was heard";
    } catch (const HookError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1: hook 'busy', bucket 0"));
    }
    engine->close();
  });
}

std::vector<TraceEvent> moved_from(engine::Trace& trace) {
  std::vector<TraceEvent> all;
  try {
    trace.move_to(all);
  } catch (const std::runtime_error&) {
    all.push_back({.bytes = -1});  // for the failure
  }
  return all;
}

// A device that does not fail; its destructor restores the state before.
struct GoodDevice {
  GoodDevice() { records_left = reads_left = 1000; }
  ~GoodDevice() {
    records_left = reads_left = 0;
    device_clock = 0;
  }
  GoodDevice(const GoodDevice&) = delete;
  GoodDevice& operator=(const GoodDevice&) = delete;
};

TEST(FailingDevice, EventsThatCannotBeReadDoNotComeAgain) {
  const GoodDevice device;
  engine::Trace trace;
  const auto add = [&](int64_t bytes) {
    const engine::DevicePoint begin = trace.point(kDevice), end = trace.point(kDevice);
    trace.add({.bytes = bytes}, begin, end);
  };
  add(1), add(2), add(3);
  reads_left = 3;  // two of the first event, one of the second
  const auto bytes_of = [&] {
    std::vector<int64_t> all;
    for (const TraceEvent& event : moved_from(trace)) all.push_back(event.bytes);
    return all;
  };
  EXPECT_EQ(bytes_of(), (std::vector<int64_t>{1, -1}));
  reads_left = 1000;
  EXPECT_EQ(bytes_of(), (std::vector<int64_t>{}));
  add(4);
  EXPECT_EQ(bytes_of(), (std::vector<int64_t>{4}));
}

// The longer ago the clocks were compared, the less exact the times are.
TEST(FailingDevice, ATraceComparesItsClocksAnewWhenItWasRead) {
  const GoodDevice device;
  engine::Trace trace;
  for (int round = 0; round < 2; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    device_clock = 5;
    const engine::DevicePoint point = trace.point(kDevice);
    trace.add({}, point, point);
    const auto all = moved_from(trace);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_GE(all[0].begin - begin, std::chrono::milliseconds(20)) << "round " << round;
  }
}

TEST(FailingDevice, ATraceThatCouldNotCompareItsClocksDoesSoLater) {
  const GoodDevice device;
  engine::Trace trace;
  reads_left = 0;
  EXPECT_THROW(trace.point(kDevice), std::runtime_error);
  reads_left = 1000;
  const auto begin = std::chrono::steady_clock::now();
  const engine::DevicePoint point = trace.point(kDevice);
  trace.add({}, point, point);
  const auto all = moved_from(trace);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_GE(all[0].begin, begin);
}

// All lanes run one after the other, as they do side by side.
TEST(Lanes, AllRunAndTheFirstErrorIsThrown) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](ProcessGroup group) {
      const auto engine = Engine::make(group, "lanes");
      std::atomic<int> ran = 0;
      engine->set_hook(make_hook("two", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
        Comm::Body body = [&](int index, Comm&) -> Task<void> {
          ++ran;
          if (index > 0) throw std::runtime_error("lane " + std::to_string(index));
          co_return;
        };
        std::string caught;
        try {
          co_await comm.split(4, body);
        } catch (const std::runtime_error& error) {
          caught = error.what();
        }
        EXPECT_EQ(caught, "lane 1");
        co_return bucket.buffer();
      }));
      engine->run(make_bucket(0, 1, at::ones({4})))->waitAndThrow();
      EXPECT_EQ(ran, 4);
      engine->close();
    });
  }
}

}  // namespace
}  // namespace brigade
