#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <torch/serialize/archive.h>

#include <numeric>

#include "brigade/data.h"
#include "brigade/error.h"
#include "brigade/process_group.h"

namespace brigade {
namespace {

std::vector<size_t> order_of(size_t size, bool shuffle, uint64_t seed) {
  std::vector<size_t> order(size);
  if (!shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  auto generator = at::detail::createCPUGenerator(seed);
  at::Tensor drawn = at::randperm(static_cast<int64_t>(size), generator, at::kLong);
  const int64_t* values = drawn.const_data_ptr<int64_t>();
  std::copy(values, values + size, order.begin());
  return order;
}

}  // namespace

DistributedSampler::DistributedSampler(size_t dataset_size, int ranks, int rank,
                                       const SamplerOptions& options)
    : dataset_size_(dataset_size),
      ranks_(static_cast<size_t>(ranks)),
      rank_(static_cast<size_t>(rank)),
      options_(options) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw ConfigError("DistributedSampler: rank " + std::to_string(rank) + " of " +
                      std::to_string(ranks) + ", but it must be at least 0 and below " +
                      "the number of ranks");
  }
  deal();
}

DistributedSampler::DistributedSampler(size_t dataset_size, const ProcessGroup& group,
                                       const SamplerOptions& options)
    : DistributedSampler(dataset_size, group.size(), group.rank(), options) {}

void DistributedSampler::deal() {
  const auto order = order_of(dataset_size_, options_.shuffle, options_.seed + epoch_);
  const size_t share =
      options_.drop_last ? dataset_size_ / ranks_ : (dataset_size_ + ranks_ - 1) / ranks_;
  indices_.resize(share);
  for (size_t i = 0; i < share; ++i)
    indices_[i] = order[(rank_ + i * ranks_) % dataset_size_];
  position_ = 0;
}

void DistributedSampler::set_epoch(uint64_t epoch) {
  epoch_ = epoch;
  deal();
}

void DistributedSampler::reset(std::optional<size_t> new_dataset_size) {
  position_ = 0;
  if (!new_dataset_size || *new_dataset_size == dataset_size_) return;
  dataset_size_ = *new_dataset_size;
  deal();
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  if (position_ == indices_.size()) return std::nullopt;
  const size_t count = std::min(batch_size, indices_.size() - position_);
  auto begin = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  return std::vector<size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(epoch_), at::kLong), true);
  archive.write("position", at::scalar_tensor(static_cast<int64_t>(position_), at::kLong),
                true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch = at::empty({}, at::kLong);
  at::Tensor position = at::empty({}, at::kLong);
  archive.read("epoch", epoch, true);
  archive.read("position", position, true);
  set_epoch(static_cast<uint64_t>(epoch.item<int64_t>()));
  position_ = std::min(static_cast<size_t>(position.item<int64_t>()), indices_.size());
}

}  // namespace brigade
