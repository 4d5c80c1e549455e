// SPDX-License-Identifier: BSD-3-Clause
// Batches of a dataset, made ahead of the training loop on a thread, each rank its share.
//
//   brigade::DataLoader<Batch> loader(
//       brigade::DistributedSampler(images.size(0), group, {.seed = 1}),
//       [&](const brigade::BatchRequest& wanted) { return make_batch(wanted.indices); },
//       {.batch_size = 64});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     while (auto batch = loader.next()) train(*batch);
//
// Its place in the data is that of the training loop, however far it has worked ahead:
// data_loader_part() (brigade/checkpoint.h) stores it, and a run that is taken up gets the
// batches that were still to come, to the last bit.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/export.h"
#include "brigade/sampler.h"

namespace brigade {

struct DataLoaderOptions {
  // ---- changes the result ----

  // Samples a batch of this rank; > 0. The last one of an epoch may be smaller.
  std::size_t batch_size = 32;
  // Leaves out a last batch that is smaller.
  bool drop_last = false;

  // ---- changes only speed or memory ----

  // Batches that are made ahead; each takes its memory. 0: none, and no thread.
  std::size_t prefetch = 2;
  // How long next() waits for a batch before it throws TimeoutError.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// What a batch is made of.
struct BatchRequest {
  std::vector<std::size_t> indices = {};  // of the dataset
  std::uint64_t epoch = 0;
  std::size_t position = 0;  // of its first sample among this rank's of the epoch
  // For random changes of the samples: depends on the sampler's seed, the epoch, the
  // position and the rank alone, so that a resumed run draws the same. Seed a generator of
  // your own with it; torch's default one belongs to the training loop's thread.
  std::uint64_t seed = 0;
};

// What DataLoader is without the type of its batches. One training loop drives it.
class BRIGADE_API DataLoaderBase {
 public:
  // Of the next batch that next() will give. After the last one of an epoch: the beginning
  // of the next epoch, once next() has said that there are no more.
  std::uint64_t epoch() const;
  std::size_t position() const;
  // Samples of this rank in an epoch, and batches that they make.
  std::size_t size() const;
  std::size_t batches() const;
  // Goes there, and drops what was made ahead. Waits for the batch that is being made.
  void seek(std::uint64_t epoch, std::size_t position = 0);

 protected:
  using Make = std::function<std::shared_ptr<void>(const BatchRequest&)>;
  // Throws ConfigError for a batch of nothing or a time limit that is not more than 0.
  DataLoaderBase(DistributedSampler sampler, Make make, const DataLoaderOptions& options);
  ~DataLoaderBase();
  DataLoaderBase(DataLoaderBase&&) noexcept;
  DataLoaderBase& operator=(DataLoaderBase&&) noexcept;
  // Empty at the end of an epoch.
  std::shared_ptr<void> take();

 private:
  class State;
  std::unique_ptr<State> state_;
};

// `Batch` is any type that can be moved.
template <class Batch>
class DataLoader : public DataLoaderBase {
 public:
  // `make` is called on the loader's thread, one call at a time, in the order of the
  // batches. What it throws comes out of next() in its place, and again in the next call.
  template <class MakeBatch>
  requires std::is_invocable_r_v<Batch, MakeBatch, const BatchRequest&> DataLoader(
      DistributedSampler sampler, MakeBatch make, const DataLoaderOptions& options = {})
      : DataLoaderBase(
            std::move(sampler),
            [make = std::move(make)](const BatchRequest& wanted) -> std::shared_ptr<void> {
              return std::make_shared<Batch>(make(wanted));
            },
            options) {}

  // The next batch; none at the end of the epoch. The call after that begins the next one.
  // Throws TimeoutError after the options' time limit.
  std::optional<Batch> next() {
    const std::shared_ptr<void> batch = take();
    if (!batch) return std::nullopt;
    return std::move(*static_cast<Batch*>(batch.get()));
  }
};

}  // namespace brigade
