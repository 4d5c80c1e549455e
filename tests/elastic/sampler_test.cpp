#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "brigade/elastic.h"
#include "brigade/error.h"

namespace brigade {
namespace {

// Takes a step, and adds one to `counts` for each of its rows.
void train_step(ElasticSampler& sampler, int ranks, at::Tensor& counts) {
  int64_t rows = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor mine = sampler.rows(rank, ranks);
    counts.index_add_(0, mine, at::ones_like(mine));
    rows += mine.numel();
  }
  EXPECT_EQ(rows, sampler.rows_in_step(ranks));
  sampler.advance(ranks);
}

TEST(ElasticSampler, DealsOutEverySampleOnceHoweverTheNumberOfRanksChanges) {
  for (const int64_t samples : {1, 3, 17, 100, 101, 127}) {
    ElasticSampler sampler(samples, 5, {.seed = 7, .epochs = 3});
    at::Tensor counts = at::zeros({samples}, at::kLong);
    for (int step = 0; !sampler.at_end(); ++step) {
      ASSERT_LT(step, 3 * samples + 3) << "it does not come to an end";
      train_step(sampler, 1 + (step * 7) % 5, counts);
    }
    EXPECT_TRUE(counts.eq(3).all().item<bool>()) << samples << " samples: " << counts;
  }
}

TEST(ElasticSampler, LeavesNoRankWithoutSamplesWhileTheNumberOfRanksStays) {
  for (const int64_t samples : {40, 41, 42, 43, 47}) {
    ElasticSampler sampler(samples, 5);
    while (!sampler.at_end()) {
      for (int rank = 0; rank < 4; ++rank)
        EXPECT_GT(sampler.rows(rank, 4).numel(), 0) << samples << " samples";
      sampler.advance(4);
    }
  }
}

TEST(ElasticSampler, GivesItsPositionToAnother) {
  ElasticSampler first(100, 5, {.epochs = 2});
  for (int step = 0; step < 7; ++step) first.advance(3);
  ElasticSampler second(100, 5, {.epochs = 2});
  SavedPart saved;
  saved.states.push_back(first.part().save());
  second.part().load(saved)();
  EXPECT_EQ(second.epoch(), first.epoch());
  EXPECT_EQ(second.consumed(), first.consumed());
  EXPECT_TRUE(at::equal(second.rows(1, 2), first.rows(1, 2)));
}

TEST(ElasticSampler, RefusesNothing) {
  EXPECT_THROW(ElasticSampler(0, 5), ConfigError);
  EXPECT_THROW(ElasticSampler(5, 0), ConfigError);
  EXPECT_THROW(ElasticSampler(5, 5, {.epochs = 0}), ConfigError);
}

}  // namespace
}  // namespace brigade
