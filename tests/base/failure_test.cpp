#include "base/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "brigade/checkpoint.h"

namespace brigade::testing {
namespace {

using base::Cause;

constexpr Failure kKinds[]{Failure::other,      Failure::config,  Failure::mismatch,
                           Failure::rendezvous, Failure::timeout, Failure::peer_lost,
                           Failure::aborted};

template <class Thrown>
Cause cause_of(const Thrown& error) {
  return base::failure_of(error);
}

TEST(FailureKinds, AreThoseOfTheTypes) {
  EXPECT_EQ(cause_of(Error("x")).kind, Failure::other);
  EXPECT_EQ(cause_of(ConfigError("x")).kind, Failure::config);
  EXPECT_EQ(cause_of(MismatchError("x")).kind, Failure::mismatch);
  EXPECT_EQ(cause_of(RendezvousError("x")).kind, Failure::rendezvous);
  EXPECT_EQ(cause_of(TimeoutError("x")).kind, Failure::timeout);
  EXPECT_EQ(cause_of(PeerLostError("x", 3)).kind, Failure::peer_lost);
  EXPECT_EQ(cause_of(PeerLostError("x", 3)).rank, 3);
  EXPECT_EQ(cause_of(base::AbortedError("x")).kind, Failure::aborted);
  const Cause hook = cause_of(HookError("why", Failure::timeout, 2));
  EXPECT_EQ(hook.kind, Failure::timeout);
  EXPECT_EQ(hook.rank, 2);
  EXPECT_EQ(hook.text, "why");
}

// A program's own texts do not decide, and neither do those of our errors.
TEST(FailureKinds, AreNotGuessedFromTheTextsOfOthersThanLibTorch) {
  const std::string text = "it timed out: Connection closed by peer";
  EXPECT_EQ(cause_of(std::runtime_error(text)).kind, Failure::other);
  EXPECT_EQ(cause_of(Error(text)).kind, Failure::other);
  EXPECT_EQ(cause_of(CheckpointError(text)).kind, Failure::other);
  const c10::SourceLocation here{"f", "here.cpp", 1};
  EXPECT_EQ(cause_of(c10::DistStoreError(here, "wait timeout after 3 ms")).kind,
            Failure::timeout);
  EXPECT_EQ(cause_of(c10::Error(here, text)).kind, Failure::other);
}

TEST(FailureKinds, HaveNamesThatAreFoundAgain) {
  for (const Failure kind : kKinds) EXPECT_EQ(base::kind_named(base::name_of(kind)), kind);
  EXPECT_EQ(base::kind_named("peer-lost"), std::nullopt);
  EXPECT_STREQ(base::name_of(Failure::peer_lost), "peer_lost");
}

TEST(FailureKinds, MakeTheErrorThatHasThem) {
  for (const Failure kind : kKinds) {
    const Cause again = base::failure_of(base::make_error({kind, 4, "text"}));
    EXPECT_EQ(again.kind, kind);
    EXPECT_EQ(again.text, "text");
    if (kind == Failure::peer_lost) {
      EXPECT_EQ(again.rank, 4);
    }
  }
}

TEST(Causes, GoThroughJsonWithAllThatTheyKnow) {
  for (const Failure kind : kKinds) {
    for (const std::optional<int> rank : {std::optional<int>(), std::optional<int>(7)}) {
      const Cause again =
          base::cause_from_json(base::to_json({kind, rank, "rank 7: \"it\"\nand more"}));
      EXPECT_EQ(again.kind, kind);
      EXPECT_EQ(again.rank, rank);
      EXPECT_EQ(again.text, "rank 7: \"it\"\nand more");
    }
  }
  EXPECT_EQ(base::cause_from_json("rank 1: ouch").text, "rank 1: ouch");
  EXPECT_EQ(base::cause_from_json("{\"kind\": 3}").kind, Failure::other);
  // Text that is not UTF-8 does not cause another error.
  EXPECT_EQ(base::cause_from_json(base::to_json({Failure::timeout, 1, "\xff"})).kind,
            Failure::timeout);
}

TEST(Classify, FindsNoPhraseInOtherTexts) {
  EXPECT_EQ(base::classify(""), Failure::other);
  EXPECT_EQ(base::classify("the tensors differ in size"), Failure::other);
  EXPECT_EQ(base::phrase_in("ValueError: ouch"), "");
  EXPECT_EQ(base::phrase_in("[a.cc:1] Read error: Broken pipe"), "Broken pipe");
}

}  // namespace
}  // namespace brigade::testing
