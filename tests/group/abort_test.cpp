// Waits in a group end when its switch is thrown.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "brigade/error.h"
#include "group/abort_switch.h"
#include "group/generation.h"
#include "support/ranks.h"

namespace brigade::group {
namespace {

using Clock = std::chrono::steady_clock;

// The time limit of the groups; nothing here may wait for it.
constexpr std::chrono::milliseconds kWholeLimit{60'000};
constexpr std::chrono::seconds kSoon{20};
constexpr std::chrono::milliseconds kMoment{500};
constexpr const char* kEnded = "it came to its end";

GenerationPlan plan_of(const ProcessGroup& met, const std::string& prefix) {
  GenerationPlan plan;
  plan.store = met.store();
  plan.prefix = prefix;
  plan.rank = met.rank();
  plan.size = met.size();
  plan.backend = "gloo";
  plan.timeout = kWholeLimit;
  plan.abort = std::make_shared<AbortSwitch>();
  return plan;
}

struct Abortable {
  Abortable(const ProcessGroup& met, const std::string& prefix) {
    const GenerationPlan plan = plan_of(met, prefix);
    abort = plan.abort;
    group = join_generation(plan);
  }
  std::shared_ptr<AbortSwitch> abort;
  ProcessGroup group;
};

// A rank with this store says where gloo listens, never learns the others' addresses, and
// reports when it has come so far.
class StoreThatStops : public c10d::PrefixStore {
 public:
  StoreThatStops(c10::intrusive_ptr<c10d::Store> store, std::string tells)
      : PrefixStore("stops", std::move(store)), tells_(std::move(tells)) {}
  bool check(const std::vector<std::string>& keys) override {
    const bool of_gloo = keys.front().find("/gloo/") != std::string::npos;
    if (of_gloo) PrefixStore::set(tells_, std::vector<uint8_t>{1});
    return !of_gloo && PrefixStore::check(keys);
  }

 private:
  const std::string tells_;
};

std::string text_of_joining(const GenerationPlan& plan) {
  try {
    join_generation(plan);
    return kEnded;
  } catch (const std::exception& error) {
    return error.what();
  }
}

c10::intrusive_ptr<c10d::Work> broadcast(const ProcessGroup& group,
                                         const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group.c10d()->broadcast(tensors);
}

std::string text_of_waiting(c10d::Work& work) {
  try {
    work.wait();
    return kEnded;
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Rank 0 sends to rank 1, which throws its switch as soon as data has come.
std::string abort_in_a_message(const ProcessGroup& met, const std::string& prefix) {
  auto aborted = std::make_unique<Abortable>(met, prefix);
  const at::Tensor data = at::full({32 << 20}, met.rank() == 0 ? 1.0F : 0.0F, at::kFloat);
  const auto work = broadcast(aborted->group, data);
  const auto begin = Clock::now();
  if (met.rank() == 0) {
    met.store()->wait({prefix + "/now"}, kWholeLimit);
  } else {
    const auto* first = static_cast<const volatile float*>(data.const_data_ptr());
    while (*first == 0 && Clock::now() < begin + kSoon) std::this_thread::yield();
    met.store()->set(prefix + "/now", std::string("1"));
  }
  aborted->abort->abort("the test says so");
  const std::string text = text_of_waiting(*work);
  aborted.reset();  // must not wait, either
  EXPECT_LT(Clock::now() - begin, kSoon) << text;
  return text;
}

// Gloo does not end a message that is half sent or half received.
TEST(AbortSwitch, EndsACollectiveInTheMiddleOfALargeMessage) {
  testing::run_ranks(2, [](ProcessGroup met) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::string prefix = "attempt_" + std::to_string(attempt);
      const auto texts = met.gather_texts(prefix, abort_in_a_message(met, prefix));
      if (texts[1] != kEnded) return;  // else all data had come before
    }
    ADD_FAILURE() << "none of 20 messages was under way";
  });
}

TEST(AbortSwitch, FailsWhatBeginsAfterIt) {
  testing::run_ranks(2, [](ProcessGroup met) {
    const Abortable aborted(met, "after");
    aborted.abort->abort("the test says so");
    const auto begin = Clock::now();
    EXPECT_NE(text_of_waiting(*broadcast(aborted.group, at::ones({4}))), kEnded);
    EXPECT_THROW(aborted.group.barrier(), Error);
    EXPECT_THROW(aborted.group.duplicate(), Error);
    EXPECT_LT(Clock::now() - begin, kSoon);
  });
}

// Rank 0 sends nothing, so only the abort ends rank 1's wait.
TEST(AbortSwitch, WhatBeginsAfterItDoesNotDependOnGloosOwnErrors) {
  testing::run_ranks(2, [](ProcessGroup met) {
    const Abortable whole(met, "whole sockets");
    whole.abort->works()->fail_all("the test says so");
    if (met.rank() == 1) {
      const auto begin = Clock::now();
      const std::string text = text_of_waiting(*broadcast(whole.group, at::ones({4})));
      EXPECT_NE(text.find("the test says so"), std::string::npos) << text;
      EXPECT_LT(Clock::now() - begin, kSoon);
    }
    met.barrier();
    whole.abort->abort("the end");
  });
}

// The others of four come and do not connect, like ranks that die then. Whether gloo waits
// for a peer to connect is chance: with three of them it nearly always does, for 10 s.
TEST(AbortSwitch, EndsConnecting) {
  testing::run_ranks(4, [](ProcessGroup met) {
    GenerationPlan plan = plan_of(met, "connecting");
    const auto key = [](int rank) { return "rank " + std::to_string(rank) + " stops"; };
    plan.store = c10::make_intrusive<c10d::PrefixStore>("stops", met.store());
    if (met.rank() != 0)
      plan.store = c10::make_intrusive<StoreThatStops>(met.store(), key(met.rank()));
    std::string text;
    std::thread joining([&] { text = text_of_joining(plan); });
    met.store()->wait({"stops/" + key(1), "stops/" + key(2), "stops/" + key(3)},
                      kWholeLimit);
    // By then rank 0 most likely waits in gloo; the result is the same before.
    std::this_thread::sleep_for(kMoment);
    plan.abort->abort("the test says so");
    joining.join();
    EXPECT_NE(text.find("the test says so"), std::string::npos) << text;
    met.barrier();
  });
}

// Counts the calls that NCCL would get.
class CountingBackend : public c10d::Backend {
 public:
  CountingBackend() : Backend(0, 1) {}
  void abort() override { ++aborts; }
  int aborts = 0;
};

TEST(AbortSwitch, EndsGroupsOfADeviceThatComeBeforeItAndAfter) {
  AbortSwitch one;
  const auto add = [&one](const c10::intrusive_ptr<CountingBackend>& backend) {
    auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
    group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::CUSTOM,
                      backend);
    one.add(group);
    return group;
  };
  const auto before = c10::make_intrusive<CountingBackend>();
  const auto kept = add(before);
  EXPECT_EQ(before->aborts, 0);
  one.abort("the test says so");
  EXPECT_EQ(before->aborts, 1);
  const auto after = c10::make_intrusive<CountingBackend>();
  const auto late = add(after);
  EXPECT_EQ(after->aborts, 1);
  EXPECT_EQ(before->aborts, 1);
}

TEST(AbortSwitch, ChangesNoResultWhileNobodyThrowsIt) {
  testing::run_ranks(2, [](ProcessGroup met) {
    const Abortable whole(met, "whole");
    std::vector<at::Tensor> values{at::full({3}, met.rank() + 1.0)};
    const auto work = whole.group.c10d()->allreduce(values);
    work->wait();
    EXPECT_TRUE(at::equal(values[0], at::full({3}, 3.0)));
    EXPECT_TRUE(at::equal(work->getFuture()->value().toTensorVector()[0], values[0]));
  });
}

}  // namespace
}  // namespace brigade::group
