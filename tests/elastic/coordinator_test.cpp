// The launchers of two hosts, without their workers' processes: messages through a real
// store.
#include "launch/coordinator.h"

#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "launch/follower.h"

namespace brigade::launching {
namespace {

using std::chrono::steady_clock;
constexpr std::chrono::seconds kLimit{60};

class ElasticCoordinator : public ::testing::Test {
 protected:
  // Returns whether the condition becomes true in time.
  template <class Condition>
  static bool becomes(Condition condition) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      if (steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  std::unique_ptr<HostLink> link(int workers, const std::string& run_id = "") {
    return std::make_unique<HostLink>(
        HostLink::Self{"the other", workers, run_id}, "here",
        [store = store_](std::string&) { return store; }, kLimit);
  }
  std::unique_ptr<HostLink> come(int workers, const std::string& run_id = "") {
    auto link = this->link(workers, run_id);
    EXPECT_TRUE(becomes([&] { return link->entry().has_value(); }));
    return link;
  }
  std::unique_ptr<group::WorkerMailbox> ready(int number) {
    auto mail = std::make_unique<group::WorkerMailbox>(
        c10::make_intrusive<c10d::PrefixStore>("brigade/attempt_0", store_), number);
    mail->send("ready 0 0");
    return mail;
  }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(ElasticCoordinator, NothingBeginsBeforeAllHostsAndTheirWorkersAreThere) {
  LaunchOptions options;
  options.nodes = 2;
  options.elastic = ElasticLaunch{.min_nodes = 2};
  Coordinator job(options, kLimit);
  job.serve(store_);
  job.open_to_followers(store_, 1, "run");
  job.started(0, 0);
  const auto first = ready(0);
  for (int i = 0; i < 3; ++i) job.poll();
  EXPECT_EQ(first->receive_now(), std::nullopt) << "a host is missing";

  const auto link = come(2);
  EXPECT_EQ(link->entry()->first_rank, 1) << "behind those of the first host";
  ASSERT_TRUE(becomes([&] { return job.poll().stay; })) << "the host is not known";
  for (int i = 0; i < 3; ++i) job.poll();
  EXPECT_EQ(first->receive_now(), std::nullopt) << "its workers are missing";

  Follower follower(*link);
  const int number = follower.first_number().value();
  for (const int local : {0, 1}) follower.started(local, local);
  const auto second = ready(number), third = ready(number + 1);
  std::optional<std::string> place;
  EXPECT_TRUE(becomes([&] {
    job.poll();
    return (place = first->receive_now()).has_value();
  }));
  EXPECT_EQ(place.value_or(""), "place 0 0 0," + std::to_string(number) + "," +
                                    std::to_string(number + 1) + " ");

  follower.goes_on_without(0, false, {.text = "rank 1 has ended"});
  EXPECT_TRUE(follower.poll().stay) << "it may be told to start another";
  EXPECT_TRUE(becomes([&] {
    job.poll();
    return !follower.poll().stay;
  })) << "there is to be no other";
}

TEST_F(ElasticCoordinator, WhatKindOfFailureAWorkerEndedOfIsToldToTheFirstHost) {
  LaunchOptions options;
  options.nodes = 2;
  options.elastic = ElasticLaunch{.min_nodes = 2, .grace = std::chrono::milliseconds(0)};
  Coordinator job(options, kLimit);
  job.serve(store_);
  job.open_to_followers(store_, 1, "run");
  job.started(0, 0);
  const auto first = ready(0);
  const auto link = come(2);
  Follower follower(*link);
  const int number = *follower.first_number();
  for (const int local : {0, 1}) follower.started(local, local);
  const auto second = ready(number), third = ready(number + 1);
  std::optional<std::string> place;
  ASSERT_TRUE(becomes([&] {
    job.poll();
    return (place = third->receive_now()).has_value();
  }));
  EXPECT_TRUE(job.goes_on_without(0, false, {.text = "rank 0 ended by SIGKILL"}));
  follower.poll();
  follower.goes_on_without(0, false,
                           {Failure::peer_lost, 0, "rank 1 ended with exit code 1"});
  ASSERT_TRUE(becomes([&] {
    job.poll();
    return !follower.poll().stay;
  })) << "the first host has not heard of it";
  third->send("ready 0 0");
  ASSERT_TRUE(becomes([&] {
    job.poll();
    while (auto text = third->receive_now()) place = text;
    return place->starts_with("place 1 ");
  }));
  EXPECT_TRUE(place->ends_with(" rank 0 ended by SIGKILL")) << *place;
}

TEST_F(ElasticCoordinator, BeatsAreSignsOfLifeAndAWorkerOfAFollowerIsEndedThere) {
  HostMessages book(store_, 1, "run");
  const auto link = come(1);
  Follower follower(*link);
  const int who = link->entry()->follower;
  // The clock runs ahead, so only a new message can shorten the silence.
  auto now = steady_clock::now();
  book.hear(now);
  int heard = 0;
  EXPECT_TRUE(becomes([&] {
    now += std::chrono::hours(1);
    book.hear(now);
    if (book.silence(who, now) == std::chrono::milliseconds(0)) ++heard;
    return heard >= 3;  // the first may be its greeting
  }));
  book.say(who, "kill " + std::to_string(follower.first_number().value() + 7));
  std::vector<int> killed;
  EXPECT_TRUE(becomes([&] { return !(killed = follower.poll().kill).empty(); }));
  EXPECT_EQ(killed, std::vector<int>{7});

  book.hear(now);
  book.forget(who);
  c10d::PrefixStore hosts("brigade/hosts", store_);
  const int64_t before = hosts.add("elastic/sent", 0);
  follower.started(7, 0);
  ASSERT_TRUE(becomes([&] { return hosts.add("elastic/sent", 0) >= before + 3; }));
  EXPECT_TRUE(book.hear(now).empty()) << "a follower that was forgotten is heard";
}

TEST_F(ElasticCoordinator, AHostOfAnotherJobIsToldBothRunIdsAndIsNotLetIn) {
  HostMessages book(store_, 1, "one", "one");
  const auto other = link(1, "two");
  ASSERT_TRUE(becomes([&] { return !other->lost().empty(); }));
  EXPECT_NE(other->lost().find("at here has the run id 'one', and this one has 'two'"),
            std::string::npos)
      << other->lost();
  EXPECT_TRUE(book.hear(steady_clock::now()).empty());
  // A host with the job's run id, or with none, may join.
  for (const char* run_id : {"one", ""}) EXPECT_EQ(come(1, run_id)->entry()->run_id, "one");
}

TEST_F(ElasticCoordinator, WhoComesTooLateToTakePartFailsNothing) {
  LaunchOptions options;
  options.elastic = ElasticLaunch{.grace = std::chrono::milliseconds(0)};
  Coordinator job(options, kLimit);
  job.serve(store_);
  job.started(0, 0);
  const auto member = ready(0);
  job.poll();
  ASSERT_TRUE(member->receive_now().value_or("").starts_with("place 0"));
  job.started(1, 1);
  member->send("ready 0 1");
  EXPECT_EQ(job.poll().kill, std::vector<int>{1}) << "it waits for a place for nothing";
  EXPECT_TRUE(job.goes_on_without(1, false, {.text = "rank 1 ended by SIGKILL"}));
  EXPECT_FALSE(job.goes_on_without(0, false, {.text = "rank 0 ended by SIGKILL"}));
}

TEST_F(ElasticCoordinator, AReplacementIsWaitedForBeforeItIsStarted) {
  LaunchOptions options;
  options.max_restarts = 1;
  options.elastic = ElasticLaunch{.replace = true, .grace = kLimit};
  Coordinator job(options, kLimit);
  job.serve(store_);
  for (const int worker : {0, 1}) job.started(worker, worker);
  const auto first = ready(0), second = ready(1);
  job.poll();
  ASSERT_TRUE(first->receive_now().value_or("").starts_with("place 0"));
  EXPECT_TRUE(job.goes_on_without(1, false, {.text = "rank 1 ended by SIGKILL"}));
  first->send("ready 0 0");
  EXPECT_EQ(job.poll().start, std::vector<int>{1});
  job.started(2, 1);
  job.poll();
  while (const auto text = first->receive_now())
    EXPECT_FALSE(text->starts_with("place")) << *text;
  const auto replacement = ready(2);
  job.poll();
  EXPECT_EQ(first->receive_now().value_or("").substr(0, 13), "place 1 0 0,2");
}

}  // namespace
}  // namespace brigade::launching
