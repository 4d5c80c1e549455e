// Batches are made ahead in the sampler's order, and a resumed run gets the rest.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "brigade/checkpoint.h"
#include "brigade/data.h"
#include "brigade/error.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::testing {
namespace {

struct LoadedBatch {
  std::vector<std::size_t> indices;
  std::uint64_t seed = 0;
  bool operator==(const LoadedBatch&) const = default;
};
using Loader = DataLoader<LoadedBatch>;

LoadedBatch plain_batch(const BatchRequest& wanted) {
  return {wanted.indices, wanted.seed};
}

Loader loader_of(std::size_t prefetch, bool drop_last = false, int rank = 1) {
  return Loader(DistributedSampler(23, 2, rank, {.seed = 5}), plain_batch,
                {.batch_size = 5, .drop_last = drop_last, .prefetch = prefetch});
}

std::vector<LoadedBatch> epoch_of(Loader& loader) {
  std::vector<LoadedBatch> all;
  while (auto batch = loader.next()) all.push_back(*batch);
  return all;
}

TEST(DataLoader, GivesTheSamplersOrderWhateverIsMadeAhead) {
  DistributedSampler sampler(23, 2, 1, {.seed = 5});
  std::vector<std::vector<LoadedBatch>> first;
  for (const std::size_t prefetch : {0U, 1U, 3U, 100U}) {
    Loader loader = loader_of(prefetch);
    EXPECT_EQ(loader.size(), 12U);
    EXPECT_EQ(loader.batches(), 3U);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(loader.epoch(), epoch);
      sampler.set_epoch(epoch);
      const auto batches = epoch_of(loader);
      ASSERT_EQ(batches.size(), 3U);
      std::vector<std::size_t> indices;
      for (const LoadedBatch& batch : batches)
        indices.insert(indices.end(), batch.indices.begin(), batch.indices.end());
      EXPECT_EQ(indices, sampler.indices());
      if (first.size() <= epoch) first.push_back(batches);
      EXPECT_EQ(batches, first[epoch]) << prefetch;
    }
  }
  EXPECT_NE(first[0][0].seed, first[0][1].seed);
  EXPECT_NE(first[0][0].seed, first[1][0].seed);
  Loader other = loader_of(2, false, /*rank=*/0);
  EXPECT_NE(other.next()->seed, first[0][0].seed) << "ranks draw the same numbers";
}

TEST(DataLoader, LeavesOutASmallLastBatchIfAsked) {
  Loader loader = loader_of(2, /*drop_last=*/true);
  EXPECT_EQ(loader.batches(), 2U);
  EXPECT_EQ(epoch_of(loader).size(), 2U);
  EXPECT_EQ(epoch_of(loader).size(), 2U);
  EXPECT_EQ(loader.epoch(), 2U);
}

TEST(DataLoader, ARunTakenUpGetsTheBatchesThatWereStillToCome) {
  for (const int given : {0, 1, 2, 3, 5}) {
    Loader loader = loader_of(4);
    for (int i = 0; i < given; ++i) loader.next();
    const PartState saved = data_loader_part(loader).save();
    Loader resumed = loader_of(4);
    resumed.next();  // it was somewhere else before
    const auto load = data_loader_part(resumed).load(
        {.states = {saved}, .saved_ranks = 2, .ranks = 2, .rank = 1});
    load();
    EXPECT_EQ(resumed.epoch(), loader.epoch());
    EXPECT_EQ(resumed.position(), loader.position()) << "ahead of the training loop";
    for (int i = 0; i < 6; ++i) EXPECT_EQ(resumed.next(), loader.next()) << given;
    // A sampler can be resumed from it as well.
    DistributedSampler sampler(23, 2, 1, {.seed = 5});
    sampler_part(sampler).load({.states = {saved}, .saved_ranks = 2, .ranks = 2})();
    EXPECT_EQ(std::to_string(sampler.position()), saved.values.at("position"));
  }
}

TEST(DataLoader, EveryRankFindsItsOwnBatchesInACheckpoint) {
  for (const int given : {0, 2, 4}) {
    TemporaryFolder folder;
    run_ranks(2, [&](ProcessGroup group) {
      Loader loader = loader_of(4, false, group.rank());
      for (int i = 0; i < given; ++i) loader.next();
      const std::vector<CheckpointPart> saved{data_loader_part(loader)};
      save_checkpoint(folder.path(), given, group, saved);
      Loader resumed = loader_of(4, false, group.rank());
      resumed.next();  // it was somewhere else before
      const std::vector<CheckpointPart> loaded{data_loader_part(resumed)};
      EXPECT_EQ(load_checkpoint(folder.path(), group, loaded), given);
      EXPECT_EQ(resumed.epoch(), loader.epoch());
      EXPECT_EQ(resumed.position(), loader.position());
      for (int i = 0; i < 6; ++i) EXPECT_EQ(resumed.next(), loader.next()) << given;
    });
  }
}

TEST(DataLoader, WorksAheadOnAThreadOfItsOwnAndNoFurtherThanAsked) {
  std::atomic<int> made{0};
  std::atomic<bool> elsewhere{true};
  const auto loop = std::this_thread::get_id();
  DataLoader<int> loader(DistributedSampler(100, 1, 0),
                         [&](const BatchRequest&) {
                           if (std::this_thread::get_id() == loop) elsewhere = false;
                           return ++made;
                         },
                         {.batch_size = 1, .prefetch = 3});
  EXPECT_EQ(made, 0) << "before the first batch is asked for";
  EXPECT_EQ(loader.next(), 1);
  for (int tries = 0; tries < 2000 && made < 4; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(made, 4);
  EXPECT_EQ(loader.position(), 1U);
  EXPECT_TRUE(elsewhere);
}

TEST(DataLoader, WhatFailsComesOutInItsPlaceAndIsTriedAgain) {
  for (const std::size_t prefetch : {0U, 3U}) {
    std::atomic<bool> broken{true};
    DataLoader<std::size_t> loader(DistributedSampler(10, 1, 0, {.shuffle = false}),
                                   [&](const BatchRequest& wanted) {
                                     if (wanted.position == 4 && broken)
                                       throw Error("a broken image");
                                     return wanted.indices[0];
                                   },
                                   {.batch_size = 2, .prefetch = prefetch});
    EXPECT_EQ(loader.next(), 0U);
    EXPECT_EQ(loader.next(), 2U);
    EXPECT_THROW(loader.next(), Error);
    EXPECT_EQ(loader.position(), 4U);
    broken = false;
    EXPECT_EQ(loader.next(), 4U);
    EXPECT_EQ(loader.next(), 6U);
  }
}

TEST(DataLoader, RefusesWhatMakesNoSenseAndDoesNotWaitForEver) {
  const DistributedSampler sampler(10, 1, 0);
  EXPECT_THROW(Loader(sampler, plain_batch, {.batch_size = 0}), ConfigError);
  EXPECT_THROW(Loader(sampler, plain_batch, {.timeout = std::chrono::milliseconds(0)}),
               ConfigError);
  std::atomic<bool> stuck{true};
  DataLoader<int> slow(sampler,
                       [&](const BatchRequest&) {
                         while (stuck)
                           std::this_thread::sleep_for(std::chrono::milliseconds(1));
                         return 7;
                       },
                       {.timeout = std::chrono::milliseconds(20)});
  EXPECT_THROW(slow.next(), TimeoutError);
  stuck = false;
  std::optional<int> batch;
  for (int tries = 0; tries < 1000 && !batch; ++tries) {
    try {
      batch = slow.next();
    } catch (const TimeoutError&) {
    }
  }
  EXPECT_EQ(batch, 7);
}

}  // namespace
}  // namespace brigade::testing
