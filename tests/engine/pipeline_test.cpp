// The pipeline of stations without process group and hook.
#include "engine/pipeline.h"

#include <gtest/gtest.h>

#include <future>
#include <semaphore>
#include <string>

namespace brigade::engine {
namespace {

constexpr std::chrono::seconds kPatience{20};

std::string text_of(const Order& order) {
  std::string text;
  for (uint32_t each : order) text += (text.empty() ? "" : ".") + std::to_string(each);
  return text;
}

// Records the orders of the lanes that are served.
class Served {
 public:
  Visit note() {
    return {[this](const Order& order) {
      std::lock_guard lock(mutex_);
      orders_ += text_of(order) + " ";
      ++count_;
      changed_.notify_all();
    }};
  }
  // The lanes that were served, once there are `count`.
  std::string after(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return count_ >= count; }));
    return orders_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string orders_;
  size_t count_ = 0;
};

class PipelineTest : public ::testing::Test {
 protected:
  ~PipelineTest() override { pipeline->stop(kPatience); }
  Served served;  // outlives the threads
  const std::shared_ptr<Pipeline> pipeline = Pipeline::make();
};

TEST_F(PipelineTest, ServesInAscendingOrderWhateverOrderLanesArriveIn) {
  for (uint32_t ticket : {0U, 1U, 2U, 3U}) pipeline->open({ticket});
  for (uint32_t ticket : {3U, 1U, 2U, 0U}) pipeline->arrive(4, {ticket}, served.note());
  EXPECT_EQ(served.after(4), "0 1 2 3 ");
}

TEST_F(PipelineTest, StationsServeIndependentlyOfEachOther) {
  pipeline->open({0});
  pipeline->open({1});
  pipeline->arrive(0, {1}, served.note());  // waits for lane 0
  pipeline->arrive(1, {0}, served.note());
  EXPECT_EQ(served.after(1), "0 ");
  pipeline->arrive(0, {0}, served.note());
  EXPECT_EQ(served.after(3), "0 0 1 ");
}

TEST_F(PipelineTest, ALaneThatPassesIsNotWaitedForAtThoseStations) {
  pipeline->open({0});
  pipeline->open({1});
  pipeline->arrive(2, {1}, served.note());
  pipeline->arrive(3, {1}, served.note());
  pipeline->pass({0}, 2, 3);
  EXPECT_EQ(served.after(1), "1 ");
  pipeline->arrive(3, {0}, served.note());  // still expected there
  EXPECT_EQ(served.after(3), "1 0 1 ");
}

TEST_F(PipelineTest, PartsOfASplitComeBeforeWhatFollowsThemAndBeforeTheNextTicket) {
  pipeline->open({0});
  pipeline->open({1});
  pipeline->split({0}, 1, 2);
  pipeline->arrive(1, {1}, served.note());
  pipeline->arrive(1, {0, 2}, served.note());
  pipeline->arrive(1, {0, 1}, served.note());
  pipeline->arrive(1, {0, 0}, served.note());
  EXPECT_EQ(served.after(4), "0.0 0.1 0.2 1 ");
}

TEST_F(PipelineTest, ALaneThatIsExpectedAgainHoldsUpThoseBehindIt) {
  pipeline->open({0});
  pipeline->open({1});
  std::binary_semaphore left(0);
  pipeline->arrive(0, {1}, served.note());
  pipeline->arrive(0, {0}, {[&](const Order& order) {
                     pipeline->expect_again(0, order);
                     left.release();
                   }});
  ASSERT_TRUE(left.try_acquire_for(kPatience));
  pipeline->open({2});
  pipeline->arrive(0, {2}, served.note());
  pipeline->arrive(0, {0}, served.note());
  EXPECT_EQ(served.after(3), "0 1 2 ");
}

TEST_F(PipelineTest, StopInterruptsAVisitThatBlocksAndDropsThoseThatWait) {
  pipeline->open({0});
  pipeline->open({1});
  std::binary_semaphore entered(0), interrupted(0);
  const auto held = std::make_shared<int>(0);
  bool ended = false;
  pipeline->arrive(0, {1}, {[held](const Order&) { FAIL() << "it was dropped"; }});
  pipeline->arrive(0, {0},
                   {[&](const Order&) {
                      entered.release();
                      ended = interrupted.try_acquire_for(kPatience);
                    },
                    [&] { interrupted.release(); }});
  ASSERT_TRUE(entered.try_acquire_for(kPatience));
  pipeline->stop(kPatience);
  EXPECT_TRUE(ended);
  EXPECT_EQ(held.use_count(), 1) << "what the dropped visit held";
  pipeline->arrive(0, {1}, {[](const Order&) { FAIL() << "after the end"; }});
}

TEST_F(PipelineTest, StopLeavesAThreadBehindThatIsStuck) {
  pipeline->open({0});
  const auto go_on = std::make_shared<std::binary_semaphore>(0);
  const auto out = std::make_shared<std::promise<void>>();
  std::binary_semaphore entered(0);
  pipeline->arrive(0, {0}, {[&entered, go_on, out](const Order&) {
                     entered.release();
                     go_on->acquire();
                     out->set_value();
                   }});
  ASSERT_TRUE(entered.try_acquire_for(kPatience));
  pipeline->stop(std::chrono::milliseconds(1));
  go_on->release();
  EXPECT_EQ(out->get_future().wait_for(kPatience), std::future_status::ready);
}

}  // namespace
}  // namespace brigade::engine
