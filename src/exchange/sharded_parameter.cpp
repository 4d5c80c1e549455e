#include "exchange/sharded_parameter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exchange/flat_buffer.h"
#include "exchange/rank_order.h"

namespace brigade {

ShardRange shard_range(int64_t n, size_t index, int rank, int ranks) {
  // Ranks `first`, `first` + 1, …, as many as are left over, have one element more.
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
    // Somebody gave the parameter other memory. The optimizer knows the shard by its
    // identity, which stays.
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
