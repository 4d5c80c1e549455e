#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "brigade/process_group.h"
#include "group/store/timed_store.h"
#include "support/ranks.h"

namespace brigade::group {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;

std::shared_ptr<Watchdog> watchdog(std::chrono::milliseconds limit) {
  return std::make_shared<Watchdog>("rank 7: the store at nowhere:1", limit);
}

// A store with a get that never returns.
class MuteStore : public c10d::HashStore {
 public:
  Bytes get(const std::string&) override {
    while (true) std::this_thread::sleep_for(1h);
  }
};

TEST(TimedStore, ForwardsEveryCall) {
  testing::run_ranks(2, [](ProcessGroup group) {
    // TCPStore has all of these calls.
    c10d::Store& store = *group.store();
    group.barrier();
    if (group.rank() == 1) return group.store()->wait({"finished"}, 10s);
    store.set("a", std::string("1"));
    EXPECT_EQ(store.get_to_str("a"), "1");
    EXPECT_EQ(store.compareSet("a", std::string("1"), std::string("2")), "2");
    EXPECT_EQ(store.add("n", 3), 3);
    EXPECT_EQ(store.add("n", 4), 7);
    EXPECT_TRUE(store.check({"a", "n"}));
    EXPECT_FALSE(store.check({"a", "none"}));
    EXPECT_TRUE(store.deleteKey("n"));
    EXPECT_GE(store.getNumKeys(), 1);
    EXPECT_TRUE(store.hasExtendedApi());
    store.append("a", Bytes{'3'});
    store.multiSet({"x", "y"}, {Bytes{'x'}, Bytes{'y'}});
    EXPECT_EQ(store.multiGet({"a", "y"}), (std::vector<Bytes>{{'2', '3'}, {'y'}}));
    store.queuePush("q", Bytes{'q'});
    EXPECT_EQ(store.queueLen("q"), 1);
    EXPECT_EQ(store.queuePop("q", true), Bytes{'q'});
    EXPECT_FALSE(store.listKeys().empty());
    store.wait({"a"});
    EXPECT_ANY_THROW(store.wait({"none"}, 50ms));
    EXPECT_EQ(store.clone()->get_to_str("x"), "x");
    store.setTimeout(100ms);
    EXPECT_EQ(store.getTimeout(), 100ms);
    EXPECT_ANY_THROW(store.get("none"));
    store.set("finished", std::string("1"));
  });
}

TEST(TimedStore, OneThreadsWaitDoesNotHoldUpAnothersCall) {
  testing::run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 1) return group.barrier();
    bool came = false;
    std::thread waiter([&] {
      try {
        group.store()->wait({"late"}, 10s);
        came = true;
      } catch (const std::exception&) {
      }
    });
    std::this_thread::sleep_for(50ms);
    group.store()->set("late", std::string("1"));
    waiter.join();
    EXPECT_TRUE(came) << "the key was set only after the wait for it had ended";
    group.barrier();
  });
}

TEST(WatchedStoreDeathTest, ACallThatNeverComesBackEndsTheProcessWithAReport) {
  EXPECT_EXIT(
      {
        auto store = c10::make_intrusive<TimedStore>(c10::make_intrusive<MuteStore>(),
                                                     watchdog(300ms));
        store->setTimeout(300ms);
        store->get("the/key");
      },
      ::testing::ExitedWithCode(1),
      "brigade: rank 7: the store at nowhere:1 does not answer: get of 'the/key' is "
      "without reply since [1-9][0-9]*\\.[0-9] s");
}

TEST(WatchedStoreDeathTest, AShorterLimitIsMetWhileTheWatchdogSleepsLonger) {
  EXPECT_EXIT(
      {
        Watchdog dog("it", 1h);
        dog.watch("first", std::string(), [] {});
        dog.watch("second", std::string(), 100ms, [] { std::this_thread::sleep_for(1h); });
      },
      ::testing::ExitedWithCode(1), "it does not answer: second is without reply");
}

TEST(Watchdog, LetsCallsInTimePassAndStopsWithItsOwner) {
  for (int i = 0; i < 100; ++i) {
    Watchdog dog("it", 1s);
    EXPECT_EQ(dog.watch("call", std::string(), [] { return 3; }), 3);
    EXPECT_THROW(dog.watch("call", std::string(), []() -> int { throw 1; }), int);
  }
}

}  // namespace
}  // namespace brigade::group
