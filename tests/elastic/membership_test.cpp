// The launcher's decisions, with messages through a real store and a simulated clock.
#include "launch/membership.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using Texts = std::vector<std::string>;

class ElasticMembership : public ::testing::Test {
 protected:
  void begin(int workers, const MembershipOptions& options = {}) {
    members_ = std::make_unique<Membership>(options, launcher_);
    for (int worker = 0; worker < workers; ++worker) start(worker);
  }
  void start(int worker) {
    members_->started(worker, now_);
    mail_[worker] = std::make_unique<group::WorkerMailbox>(store_, worker);
  }
  void say(int worker, const std::string& text) { mail_.at(worker)->send(text); }
  void ready(int worker) { say(worker, "ready 0 0"); }
  void turn(milliseconds later = milliseconds(0)) {
    now_ += later;
    members_->turn(now_);
  }
  // The messages that the worker has got since the last call.
  Texts heard(int worker) {
    Texts texts;
    while (auto text = mail_.at(worker)->receive(milliseconds(1))) texts.push_back(*text);
    return texts;
  }
  // Puts workers 0 … n - 1 into generation 0, with its state.
  void form(int workers, const MembershipOptions& options = {}) {
    begin(workers, options);
    for (int worker = 0; worker < workers; ++worker) ready(worker);
    turn();
    for (int worker = 0; worker < workers; ++worker) {
      ASSERT_EQ(heard(worker).size(), 1U);
      say(worker, "formed 0");
    }
    turn();
  }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  group::LauncherMailbox launcher_{store_};
  std::unique_ptr<Membership> members_;
  std::map<int, std::unique_ptr<group::WorkerMailbox>> mail_;
  Membership::Time now_ = Membership::Time() + std::chrono::hours(1);
};

TEST_F(ElasticMembership, BeginsWhenAllWhoWereStartedAreReady) {
  begin(3);
  ready(2);
  ready(0);
  turn();
  EXPECT_EQ(heard(0), Texts{});
  ready(1);
  turn();
  EXPECT_EQ(heard(0), Texts{"place 0 0 0,1,2 "});
  EXPECT_EQ(heard(2), Texts{"place 0 2 0,1,2 "});
}

TEST_F(ElasticMembership, WhoHasSaidThatItHasTheStateCountsThoughNobodyHasReadItYet) {
  form(1);
  start(1);
  ready(1);
  turn();
  ready(0);
  turn();
  EXPECT_EQ(heard(1), Texts{"place 1 1 0,1 a worker waits to join"});
  say(1, "formed 1");
  members_->ended(0, {.text = "rank 0 ended by SIGKILL"}, now_);
  EXPECT_EQ(members_->why_over(0), "");
}

TEST_F(ElasticMembership, TheReasonIsADeathAndNotWhatItsPeersHaveEndedOf) {
  form(4);
  members_->ended(0, {Failure::peer_lost, 1, "rank 0 ended with exit code 1"}, now_);
  members_->ended(1, {.text = "rank 1 ended by SIGKILL"}, now_);
  members_->ended(2, {Failure::aborted, 1, "rank 2 ended with exit code 1"}, now_);
  ready(3);
  turn();
  EXPECT_EQ(heard(3).back(), "place 1 0 3 rank 1 ended by SIGKILL");
}

TEST_F(ElasticMembership, ADeathEndsTheGenerationAndTheRestFormsTheNext) {
  form(3);
  members_->ended(1, {.text = "rank 1 ended by SIGKILL"}, now_);
  EXPECT_EQ(heard(0), Texts{"abort 0 rank 1 ended by SIGKILL"});
  EXPECT_EQ(heard(2), Texts{"abort 0 rank 1 ended by SIGKILL"});
  say(0, "failed 0 connection closed");
  ready(0);
  turn();
  EXPECT_EQ(heard(0), Texts{}) << "not before all who live are ready";
  ready(2);
  turn();
  EXPECT_EQ(heard(0), Texts{"place 1 0 0,2 rank 1 ended by SIGKILL"});
  EXPECT_EQ(heard(2), Texts{"place 1 1 0,2 rank 1 ended by SIGKILL"});
  EXPECT_EQ(members_->why_over(0), "");
}

TEST_F(ElasticMembership, ADeathWhileTheNextIsFormedIsOneMoreGeneration) {
  form(3);
  members_->ended(0, {.text = "rank 0 ended"}, now_);
  ready(1);
  ready(2);
  turn();
  EXPECT_EQ(members_->generation(), 1);
  members_->ended(2, {.text = "rank 2 ended"}, now_);
  EXPECT_EQ(heard(1).back(), "abort 1 rank 2 ended");
  ready(1);
  turn();
  EXPECT_EQ(heard(1), Texts{"place 2 0 1 rank 2 ended"});
}

TEST_F(ElasticMembership, ANewcomerIsAnnouncedAndJoinsWhenTheMembersCome) {
  form(2);
  start(2);
  ready(2);
  turn();
  EXPECT_EQ(heard(0), Texts{"wanted 0"});
  EXPECT_EQ(heard(2), Texts{});
  ready(0);
  turn();
  EXPECT_EQ(heard(1), Texts{"wanted 0"}) << "it comes by itself: nothing is aborted";
  ready(1);
  turn();
  EXPECT_EQ(heard(2), Texts{"place 1 2 0,1,2 a worker waits to join"});
}

TEST_F(ElasticMembership, WhoDoesNotComeAfterAStepIsToldSoInTheEnd) {
  form(2, {.silence = milliseconds(100)});
  start(2);
  ready(2);
  turn();
  ready(0);
  turn();
  EXPECT_EQ(heard(1), Texts{"wanted 0"});
  turn(milliseconds(101));
  EXPECT_EQ(heard(1), Texts{"abort 0 a worker waits to join"});
}

TEST_F(ElasticMembership, AGraceLetsAReplacementJoinAtOnce) {
  form(2, {.grace = milliseconds(500)});
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  start(2);
  ready(0);
  turn(milliseconds(499));
  EXPECT_EQ(heard(0), Texts{"abort 0 rank 1 ended"});
  ready(2);
  turn();
  EXPECT_EQ(heard(0), Texts{"place 1 0 0,2 rank 1 ended"});
}

TEST_F(ElasticMembership, AfterTheGraceTheOthersGoOnAlone) {
  form(2, {.grace = milliseconds(500)});
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  start(2);
  ready(0);
  turn();
  EXPECT_EQ(members_->generation(), 0);
  turn(milliseconds(500));
  EXPECT_EQ(members_->generation(), 1);
}

TEST_F(ElasticMembership, WhoIsSilentIsGivenUp) {
  form(3, {.silence = milliseconds(100), .limit = milliseconds(1000)});
  say(0, "failed 0 timed out");
  ready(0);
  turn();
  say(1, "heard 0");
  turn(milliseconds(101));
  EXPECT_EQ(members_->take_stuck(), std::vector<int>{2});
  turn(milliseconds(1000));
  EXPECT_EQ(members_->take_stuck(), (std::vector<int>{1, 2})) << "heard, but never came";
}

TEST_F(ElasticMembership, TheLastWithTheStateHasTheWholeLimit) {
  form(2, {.silence = milliseconds(100), .limit = milliseconds(1000)});
  members_->ended(0, {.text = "rank 0 ended"}, now_);
  turn(milliseconds(500));
  EXPECT_EQ(members_->take_stuck(), std::vector<int>{}) << "it may only be slow";
  turn(milliseconds(600));
  EXPECT_EQ(members_->take_stuck(), std::vector<int>{1});
}

TEST_F(ElasticMembership, NothingBeginsWhileHostsAreMissing) {
  begin(2);
  members_->hold(true);
  ready(0);
  ready(1);
  turn(milliseconds(10'000));
  EXPECT_EQ(members_->generation(), -1);
  members_->hold(false);
  turn();
  EXPECT_EQ(members_->generation(), 0);
}

TEST_F(ElasticMembership, WhoWasToldAndHasNotAnsweredIsWaitedFor) {
  form(3);
  EXPECT_FALSE(members_->waits_for(0));
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  EXPECT_TRUE(members_->waits_for(0));
  EXPECT_FALSE(members_->waits_for(1)) << "it is dead";
  say(0, "heard 0");
  ready(2);
  turn();
  EXPECT_FALSE(members_->waits_for(0));
  EXPECT_FALSE(members_->waits_for(2));
}

TEST_F(ElasticMembership, AMessageFromBeforeAWorkerIsKnownIsReadWhenItIs) {
  form(1);
  mail_[5] = std::make_unique<group::WorkerMailbox>(store_, 5);  // on another host
  ready(5);
  turn();
  EXPECT_EQ(heard(0), Texts{});
  members_->started(5, now_);
  turn();
  EXPECT_EQ(heard(0), Texts{"wanted 0"});
}

TEST_F(ElasticMembership, IsFinishedWhenAllMembersAreDone) {
  form(2);
  say(0, "ready 9 1");
  turn();
  EXPECT_FALSE(members_->finished());
  say(1, "ready 9 1");
  turn();
  EXPECT_TRUE(members_->finished());
  EXPECT_EQ(heard(0), Texts{"finished"});
}

TEST_F(ElasticMembership, WhoFailedInTheLastStepGetsAGenerationMore) {
  form(2);
  say(0, "ready 9 1");
  say(1, "failed 0 connection closed");
  say(1, "ready 8 0");
  turn();
  EXPECT_FALSE(members_->finished());
  EXPECT_EQ(heard(0), Texts{"place 1 0 0,1 the end of the training"});
}

TEST_F(ElasticMembership, IsOverWithoutAnybodyWhoHasTheState) {
  form(2);
  start(2);
  members_->ended(0, {.text = "rank 0 ended"}, now_);
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  EXPECT_NE(members_->why_over(5).find("no worker is left that has the state"),
            std::string::npos);
}

TEST_F(ElasticMembership, ReplacementsBeginWhereAllDiedBeforeTheyHadTheState) {
  begin(1);
  ready(0);
  turn();
  members_->ended(0, {.text = "rank 0 ended by SIGKILL"}, now_);
  start(1);
  ready(1);
  turn();
  EXPECT_FALSE(members_->finished());
  EXPECT_EQ(heard(1), Texts{"place 1 0 1 rank 0 ended by SIGKILL"});
}

TEST_F(ElasticMembership, FewerThanTheLeastWaitForMore) {
  form(2, {.min_workers = 2});
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  ready(0);
  turn(milliseconds(10'000));
  EXPECT_EQ(members_->generation(), 0);
  EXPECT_EQ(members_->why_over(1), "");
  EXPECT_NE(members_->why_over(0).find("fewer than --min-workers 2"), std::string::npos);
  start(2);
  ready(2);
  turn();
  EXPECT_EQ(members_->generation(), 1);
}

TEST_F(ElasticMembership, WhoHasTheStateComesFirst) {
  form(2);
  start(2);
  start(3);
  ready(2);
  ready(3);
  turn();
  ready(0);
  ready(1);
  turn();
  for (int worker : {0, 3}) say(worker, "formed 1");
  turn();
  members_->ended(1, {.text = "rank 1 ended"}, now_);
  for (int worker : {0, 2, 3}) ready(worker);
  turn();
  EXPECT_EQ(heard(2).back(), "place 2 2 0,3,2 rank 1 ended");
}

}  // namespace
}  // namespace brigade::launching
