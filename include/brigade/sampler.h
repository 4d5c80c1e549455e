// SPDX-License-Identifier: BSD-3-Clause
// A sampler that gives each rank its share of a dataset in every epoch.
#pragma once
#include <torch/data/samplers/base.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "brigade/export.h"

namespace brigade {

class ProcessGroup;

struct SamplerOptions {
  bool shuffle = true;
  // Must be equal on all ranks. The order of an epoch depends on seed + epoch only.
  uint64_t seed = 0;
  // How a size that the number of ranks does not divide is made even: false repeats samples
  // from the beginning of the order, true leaves out its tail.
  bool drop_last = false;
};

// Deals a dataset out to the ranks: rank r of n takes every n-th sample from the r-th on,
// of an order that is the same on all ranks. The indices are those of Python's
// torch.utils.data.DistributedSampler with the same options.
//
// Call set_epoch before each epoch, or every epoch has the same order. Works as the sampler
// of a torch::data data loader; copies are independent of each other.
class BRIGADE_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Throws ConfigError unless 0 <= rank < ranks.
  DistributedSampler(size_t dataset_size, int ranks, int rank,
                     const SamplerOptions& options = {});
  DistributedSampler(size_t dataset_size, const ProcessGroup& group,
                     const SamplerOptions& options = {});

  // Begins the epoch anew. A loader that holds a copy must be made after this call.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }
  uint64_t seed() const { return options_.seed; }
  size_t rank() const { return rank_; }

  // All of this rank's indices of the epoch, in order.
  const std::vector<size_t>& indices() const { return indices_; }
  // How many these are: equal on all ranks.
  size_t size() const { return indices_.size(); }
  // How many of them next() has given.
  size_t position() const { return position_; }

  // Begins the epoch anew, of a dataset of another size if one is given.
  void reset(std::optional<size_t> new_dataset_size = std::nullopt) override;
  // Up to batch_size indices; none at the end of the epoch.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  // Epoch and position. Load into a sampler made with the same arguments.
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

}  // namespace brigade
