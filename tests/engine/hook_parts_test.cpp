// Parts of buckets, their positions in a step, and states of hooks made of others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "brigade/compose_hooks.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace brigade {
namespace {

// Parameters of 2, 3, 0, 4 and 1 values, with the gradients 0, 1, 2 …
Bucket five_parameters() {
  const std::vector<at::Tensor> parameters{at::zeros({2}), at::zeros({3, 1}),
                                           at::zeros({0, 5}), at::zeros({2, 2}),
                                           at::zeros({1})};
  return Bucket(at::arange(10, at::kFloat), parameters, {"a", "b", "c", "d", "e"}, 3,
                false);
}

at::Tensor floats(std::vector<float> values) { return at::tensor(values); }

TEST(BucketPart, IsAViewWhereItsParametersLieSideBySide) {
  Bucket whole = five_parameters();
  BucketPart part(whole, {1, 2, 3});
  const Bucket& bucket = part.bucket();
  EXPECT_EQ(bucket.names(), (std::vector<std::string>{"b", "c", "d"}));
  EXPECT_TRUE(at::equal(bucket.buffer(), floats({2, 3, 4, 5, 6, 7, 8})));
  EXPECT_TRUE(bucket.buffer().is_alias_of(whole.buffer()));
  EXPECT_EQ(bucket.gradients()[2].sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(bucket.index(), 3);
  EXPECT_FALSE(bucket.is_last());
  bucket.buffer().mul_(10);
  part.put_back(bucket.buffer());
  EXPECT_TRUE(at::equal(whole.buffer(), floats({0, 1, 20, 30, 40, 50, 60, 70, 80, 9})));
  part.put_back(at::zeros({7}));  // belongs to another tensor
  EXPECT_TRUE(at::equal(whole.buffer(), floats({0, 1, 0, 0, 0, 0, 0, 0, 0, 9})));
}

TEST(BucketPart, IsCopiedTogetherAndBackWhereOthersLieBetween) {
  Bucket whole = five_parameters();
  const at::Tensor memory = at::full({7}, -1.0f);
  BucketPart part(whole, {0, 3, 4}, memory);
  EXPECT_TRUE(part.bucket().buffer().is_same(memory));
  EXPECT_TRUE(at::equal(memory, floats({0, 1, 5, 6, 7, 8, 9})));
  part.put_back(memory * 10);
  EXPECT_TRUE(at::equal(whole.buffer(), floats({0, 10, 2, 3, 4, 50, 60, 70, 80, 90})));
  EXPECT_EQ(BucketPart::elements(whole, {0, 3, 4}), 7);
  EXPECT_THROW(part.put_back(at::zeros({6})), c10::Error);
  EXPECT_THROW(BucketPart(whole, {3, 0}), c10::Error);
  EXPECT_THROW(BucketPart(whole, {0, 5}), c10::Error);
  EXPECT_THROW(BucketPart(whole, {}), c10::Error);
}

// Every complex value takes two numbers of the buffer.
TEST(BucketPart, KnowsThatComplexGradientsArePairs) {
  const std::vector<at::Tensor> parameters{
      at::zeros({2}), at::zeros({3}, at::kComplexFloat), at::zeros({1}),
      at::zeros({1}, at::kComplexFloat)};
  Bucket whole(at::arange(11, at::kFloat), parameters, {"a", "b", "c", "d"});
  EXPECT_TRUE(at::equal(BucketPart(whole, {2, 3}).bucket().buffer(), floats({8, 9, 10})));
  BucketPart pairs(whole, {1, 3});
  EXPECT_TRUE(at::equal(pairs.bucket().buffer(), floats({2, 3, 4, 5, 6, 7, 9, 10})));
  pairs.put_back(at::zeros({8}));
  EXPECT_TRUE(at::equal(whole.buffer(), floats({0, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0})));
}

TEST(BucketSequence, NumbersWhatAHookSeesAndKnowsTheLast) {
  const auto bucket = [](int64_t index, bool last) {
    return Bucket(at::zeros({1}), {at::zeros({1})}, {"p" + std::to_string(index)}, index,
                  last);
  };
  // It sees the second and third of four buckets.
  for (const bool told : {true, false}) {
    BucketSequence sequence;
    if (told) sequence.expect(2);
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(step);
      for (int64_t index = 0; index < 4; ++index) {
        sequence.pass(bucket(index, index == 3));
        if (index != 1 && index != 2) continue;
        const Bucket seen = sequence.next(bucket(index, false));
        EXPECT_EQ(seen.index(), index - 1);
        EXPECT_EQ(seen.is_last(), index == 2 && (told || step > 0));
      }
    }
  }
}

// A single rank runs its hooks inline, as with NCCL, and sends nothing.
class CountScopes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CountScopes, ::testing::Values(1, 2));

TEST_P(CountScopes, CountWhatALaneSendsUnderItsName) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    auto engine = engine::Engine::make(group, "counted");
    engine->set_hook(make_hook("two", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      Comm::Body body = [&](int index, Comm& lane) -> Task<void> {
        TrafficLabel counted(lane, index == 0 ? "halves" : "rest", 100 * (index + 1));
        at::Tensor part = bucket.buffer().narrow(0, index * 4, 4);
        co_await lane.all_reduce(part);
        // Lanes inside a lane count with it.
        Comm::Body inner = [&](int, Comm& own) -> Task<void> {
          co_await own.all_reduce(part);
        };
        if (index == 1) co_await lane.split(2, inner);
      };
      co_await comm.split(2, body);
      co_await comm.all_reduce(bucket.buffer());  // counts in no part
      co_return bucket.buffer();
    }));
    for (int step = 0; step < 2; ++step)
      engine->run(testing::make_bucket(0, 1, at::ones({8})))->waitAndThrow();
    const HookStats stats = engine->stats();
    EXPECT_EQ(stats.parts.size(), 2u);
    EXPECT_EQ(stats.parts.at("halves").collectives, 2);
    EXPECT_EQ(stats.parts.at("rest").collectives, 6);
    EXPECT_EQ(stats.parts.at("rest").bytes_before, 400);
    EXPECT_EQ(stats.parts.at("rest").bytes_sent, group.size() == 1 ? 0 : 6 * 16);
    EXPECT_EQ(stats.parts.at("halves").steps, 2);
    EXPECT_GT(stats.parts.at("rest").reduce_seconds, 0);
    EXPECT_EQ(stats.total.collectives, 10);
    engine->close();
  });
}

HookState state_of(float error, const std::string& shared) {
  return {{{"error.w", at::full({2}, error)}, {"q.w", at::full({1}, error)}},
          {{"own.place", shared}, {"count", shared}}};
}

TEST(PartStates, ComeBackByTheirNumberAndAreCombinedEachByItself) {
  // Only the first rank keeps the second part.
  std::vector<HookState> shards(2);
  add_part_state(shards[0], 0, state_of(1, "5"));
  add_part_state(shards[1], 0, state_of(2, "5"));
  add_part_state(shards[0], 11, state_of(7, "6"));
  add_part_state(shards[1], 11, {{}, {{"own.with_first", "1"}}});
  EXPECT_TRUE(
      at::equal(part_state(shards[1], 0).tensors.at("error.w"), at::full({2}, 2.f)));
  EXPECT_EQ(part_state(shards[0], 11).values.at("own.place"), "6");
  EXPECT_TRUE(part_state(shards[0], 1).tensors.empty());

  const HookState both = combine_states(shards);
  const HookState first = part_state(both, 0), second = part_state(both, 11);
  EXPECT_TRUE(at::equal(first.tensors.at("error.w"), at::full({2}, 1.5f)));
  EXPECT_TRUE(at::equal(second.tensors.at("error.w"), at::full({2}, 7.f)));
  EXPECT_EQ(second.values, (std::map<std::string, std::string>{{"count", "6"}}));
  // A state that lacks a part without saying so is still an error.
  std::vector<HookState> lacking(2);
  add_part_state(lacking[0], 0, state_of(1, "5"));
  EXPECT_THROW(combine_states(lacking), ConfigError);
}

}  // namespace
}  // namespace brigade
