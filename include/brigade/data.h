// SPDX-License-Identifier: BSD-3-Clause
// Each rank's share of a dataset: a sampler, and a loader that makes batches.
#pragma once
#include <torch/data/samplers/base.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/error.h"

namespace brigade {

// ---- Samplers ---------------------------------------------------------------------------
//
// A sampler gives each rank its share of a dataset in every epoch.

class ProcessGroup;

struct SamplerOptions {
  bool shuffle = true;
  // Must be equal on all ranks. The order of an epoch depends on seed + epoch only.
  uint64_t seed = 0;
  // If the number of ranks does not divide the size: false repeats samples from the
  // beginning of the order, true leaves out its tail.
  bool drop_last = false;
};

// Rank r of n takes every n-th sample from the r-th on, in an order that is the same on all
// ranks. The indices are those of Python's torch.utils.data.DistributedSampler with the
// same options.
//
// Call set_epoch before each epoch, or every epoch has the same order. It can be the
// sampler of a torch::data data loader; copies are independent of each other.
class BRIGADE_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Throws ConfigError unless 0 <= rank < ranks.
  DistributedSampler(size_t dataset_size, int ranks, int rank,
                     const SamplerOptions& options = {});
  DistributedSampler(size_t dataset_size, const ProcessGroup& group,
                     const SamplerOptions& options = {});

  // Goes to the beginning of the epoch. A loader that holds a copy must be made after this
  // call.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }
  uint64_t seed() const { return options_.seed; }
  size_t rank() const { return rank_; }

  // All of this rank's indices of the epoch, in order.
  const std::vector<size_t>& indices() const { return indices_; }
  // The number of indices(); equal on all ranks.
  size_t size() const { return indices_.size(); }
  // The number of them that next() has returned.
  size_t position() const { return position_; }

  // Goes to the beginning of the epoch; `new_dataset_size` changes the size.
  void reset(std::optional<size_t> new_dataset_size = std::nullopt) override;
  // Up to batch_size indices; none at the end of the epoch.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  // Saves epoch and position. Load into a sampler made with the same arguments.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void deal();

  size_t dataset_size_;
  size_t ranks_;
  size_t rank_;
  SamplerOptions options_;
  uint64_t epoch_ = 0;
  size_t position_ = 0;
  std::vector<size_t> indices_;
};

// ---- Data loaders -----------------------------------------------------------------------
//
// A data loader makes this rank's batches on a thread, ahead of the training loop.
//
//   brigade::DataLoader<Batch> loader(
//       brigade::DistributedSampler(images.size(0), group, {.seed = 1}),
//       [&](const brigade::BatchRequest& wanted) { return make_batch(wanted.indices); },
//       {.batch_size = 64});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     while (auto batch = loader.next()) train(*batch);
//
// Its position is the training loop's, however far it has worked ahead: data_loader_part()
// (brigade/checkpoint.h) stores it, and a resumed run gets the remaining batches, to the
// last bit.

struct DataLoaderOptions {
  // ---- changes the result ----

  // Samples in a batch of this rank; > 0. The last batch of an epoch may be smaller.
  std::size_t batch_size = 32;
  // Leaves out a last batch that is smaller.
  bool drop_last = false;

  // ---- changes only speed or memory ----

  // Number of batches that are made ahead and kept in memory. 0: none, and no thread.
  std::size_t prefetch = 2;
  // How long next() waits for a batch before it throws TimeoutError.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// The samples of a batch to be made.
struct BatchRequest {
  std::vector<std::size_t> indices = {};  // of the dataset
  std::uint64_t epoch = 0;
  std::size_t position = 0;  // of the first sample, among this rank's of the epoch
  // A seed for random changes of the samples. It depends on the sampler's seed, the epoch,
  // the position and the rank alone, so that a resumed run draws the same. Use a generator
  // of your own: torch's default one belongs to the training loop's thread.
  std::uint64_t seed = 0;
};

// DataLoader without the type of its batches. One training loop drives it.
class BRIGADE_API DataLoaderBase {
 public:
  // Epoch and position of the next batch. After an epoch's last batch they are the next
  // epoch's beginning as soon as next() has returned none.
  std::uint64_t epoch() const;
  std::size_t position() const;
  // The number of samples, and of batches, of this rank in an epoch.
  std::size_t size() const;
  std::size_t batches() const;
  // Goes to this position, and drops the batches made ahead. Waits for the one being made.
  void seek(std::uint64_t epoch, std::size_t position = 0);

 protected:
  using Make = std::function<std::shared_ptr<void>(const BatchRequest&)>;
  // Throws ConfigError unless the batch size and the time limit are more than 0.
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
  // batches. next() throws its exception in place of that batch, and tries again in the
  // next call.
  template <class MakeBatch>
  requires std::is_invocable_r_v<Batch, MakeBatch, const BatchRequest&> DataLoader(
      DistributedSampler sampler, MakeBatch make, const DataLoaderOptions& options = {})
      : DataLoaderBase(
            std::move(sampler),
            [make = std::move(make)](const BatchRequest& wanted) -> std::shared_ptr<void> {
              return std::make_shared<Batch>(make(wanted));
            },
            options) {}

  // The next batch; none at the end of the epoch. The call after that begins the next
  // epoch. Throws TimeoutError after the options' time limit.
  std::optional<Batch> next() {
    const std::shared_ptr<void> batch = take();
    if (!batch) return std::nullopt;
    return std::move(*static_cast<Batch*>(batch.get()));
  }
};

}  // namespace brigade
