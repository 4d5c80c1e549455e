#include "exchange/sharded_parameter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exchange/flat_buffer.h"
#include "exchange/rank_order.h"
#include "kernels/mean.h"

namespace brigade {

ShardLayout::ShardLayout(std::vector<ShardedItem> items, int ranks, int me)
    : items_(std::move(items)),
      ranks_(ranks),
      me_(me),
      filled_(static_cast<size_t>(ranks)) {
  for (const ShardedItem& item : items_) {
    for (int rank = 0; rank < ranks; ++rank)
      filled_[static_cast<size_t>(rank)] += item.parameter->range(rank).length;
  }
  for (const int64_t filled : filled_) length_ = std::max(length_, filled);
}

at::Tensor ShardLayout::chunk(const at::Tensor& chunks, int rank) const {
  const int place = rank == me_ ? ranks_ - 1 : rank < me_ ? rank : rank - 1;
  return chunks.narrow(0, place * length_, length_);
}

at::Tensor ShardLayout::others(const at::Tensor& chunks) const {
  return chunks.narrow(0, 0, (ranks_ - 1) * length_);
}

void ShardLayout::read_gradients(const at::Tensor& bucket, at::Tensor chunks) const {
  if (length_ == 0) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me_) continue;
    std::vector<at::Tensor> parts;
    for (const ShardedItem& item : items_) {
      const ShardRange range = item.parameter->range(rank);
      if (range.length > 0)
        parts.push_back(bucket.narrow(0, item.offset + range.begin, range.length));
    }
    const int64_t rest = length_ - filled_[static_cast<size_t>(rank)];
    if (rest > 0) parts.push_back(at::zeros({rest}, bucket.options()));
    at::Tensor to = chunk(chunks, rank);
    at::cat_out(to, parts);
  }
}

void ShardLayout::average(const at::Tensor& bucket, at::Tensor chunks, bool divided,
                          at::Tensor mean) const {
  if (bucket.is_cpu() && bucket.scalar_type() == at::kFloat && !divided) {
    average_floats(bucket, chunks, mean);
    return;
  }
  at::Tensor own = chunk(chunks, me_);
  int64_t at = 0;
  for (const ShardedItem& item : items_) {
    const ShardRange range = item.parameter->range(me_);
    own.narrow(0, at, range.length)
        .copy_(bucket.narrow(0, item.offset + range.begin, range.length));
    at += range.length;
  }
  if (divided) own.div_(ranks_);
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < ranks_; ++rank) by_rank.push_back(chunk(chunks, rank));
  mean_of_shards(by_rank, divided, mean);
}

// The same in one pass over memory.
void ShardLayout::average_floats(const at::Tensor& bucket, const at::Tensor& chunks,
                                 const at::Tensor& mean) const {
  std::vector<const float*> next;
  for (int rank = 0; rank < ranks_; ++rank)
    next.push_back(chunk(chunks, rank).const_data_ptr<float>());
  float* to = mean.mutable_data_ptr<float>();
  for (const ShardedItem& item : items_) {
    const ShardRange range = item.parameter->range(me_);
    next[static_cast<size_t>(me_)] =
        bucket.const_data_ptr<float>() + item.offset + range.begin;
    kernels::mean(next, static_cast<size_t>(range.length), to);
    for (const float*& part : next) part += range.length;
    to += range.length;
  }
}

void ShardLayout::read(at::Tensor chunk) const {
  int64_t at = 0;
  for (const ShardedItem& item : items_) {
    const at::Tensor& shard = item.parameter->shard(me_);
    chunk.narrow(0, at, shard.numel()).copy_(shard);
    at += shard.numel();
  }
}

void ShardLayout::write(const std::function<at::Tensor(int rank)>& chunk_of) const {
  std::vector<at::Tensor> to, from;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me_) continue;
    const at::Tensor chunk = chunk_of(rank);
    int64_t at = 0;
    for (const ShardedItem& item : items_) {
      const at::Tensor& shard = item.parameter->shard(rank);
      if (shard.numel() == 0) continue;
      to.push_back(shard);
      from.push_back(chunk.narrow(0, at, shard.numel()));
      at += shard.numel();
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

ShardRange shard_range(int64_t n, size_t index, int rank, int ranks) {
  // The `over` ranks from `first` on have one element more.
  const int64_t each = n / ranks, over = n % ranks;
  const auto first = static_cast<int64_t>(index % static_cast<size_t>(ranks));
  const auto begin = [&](int64_t of) {
    const int64_t longer = std::clamp<int64_t>(of - first, 0, over) +
                           std::clamp<int64_t>(first + over - ranks, 0, of);
    return of * each + longer;
  };
  return {begin(rank), begin(rank + 1) - begin(rank)};
}

ShardedParameter::ShardedParameter(std::string name, at::Tensor parameter, size_t index,
                                   size_t group, int ranks)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      index_(index),
      group_(group),
      shards_(static_cast<size_t>(ranks)) {
  const at::Tensor flat = flat_view(parameter_);
  for (int rank = 0; rank < ranks; ++rank) {
    const ShardRange range = this->range(rank);
    shards_[static_cast<size_t>(rank)] = flat.narrow(0, range.begin, range.length);
  }
}

const at::Tensor& ShardedParameter::shard(int rank) const {
  const at::Tensor& shard = shards_[static_cast<size_t>(rank)];
  if (!shard.is_alias_of(parameter_)) {
    // The parameter has been given other memory. The optimizer knows the shard by its
    // identity, so this keeps the tensor.
    const ShardRange range = this->range(rank);
    at::Tensor(shard).set_data(flat_view(parameter_).narrow(0, range.begin, range.length));
  }
  return shard;
}

void mean_of_shards(const std::vector<at::Tensor>& by_rank, bool divided, at::Tensor mean) {
  if (!divided && mean_by_kernel(by_rank, mean)) return;
  at::Tensor sum = sum_in_order(by_rank);
  mean.copy_(divided ? sum : sum.div_(static_cast<int64_t>(by_rank.size())));
}

}  // namespace brigade
