// How a large parameter travels by itself: its gradient is sent from the bucket, and its
// values arrive where they belong, without messages in between.
#pragma once
#include <ATen/core/Tensor.h>

#include "brigade/hook.h"
#include "exchange/sharded_parameter.h"

namespace brigade {

class InPlaceExchange {
 public:
  // Whether the copies of messages would cost more than a collective for each parameter.
  // Equal on all ranks.
  static bool pays(const ShardedParameter& parameter);

  // `gradient`: the parameter's part of the bucket. Keeps a reference to the parameter.
  InPlaceExchange(const ShardedParameter& parameter, at::Tensor gradient, int me);
  // How many elements of memory the exchange needs.
  int64_t scratch() const { return parts() * own_.length; }
  // Returns the mean of this rank's shard, added up in the order of the ranks. It lies in
  // the bucket, which has no other use afterwards.
  Task<at::Tensor> reduce_scatter(at::Tensor scratch, Comm& comm) const;
  // Brings the other ranks' shards of the parameter.
  Task<void> all_gather(at::Tensor scratch, Comm& comm) const;

 private:
  int ranks() const { return parameter_.ranks(); }
  // A shard that lies between those of other ranks is sent along, to this rank itself, so
  // that what is sent is one stretch of memory.
  bool between() const { return me_ > 0 && me_ + 1 < ranks(); }
  int64_t parts() const { return ranks() - (between() ? 0 : 1); }
  int64_t place_of(int rank) const { return rank > me_ && !between() ? rank - 1 : rank; }
  at::Tensor stretch(const at::Tensor& whole) const;
  // How much of the stretch belongs to each rank.
  std::vector<int64_t> lengths_of_theirs() const;
  // This rank's length, for each part.
  std::vector<int64_t> lengths_of_mine() const;

  const ShardedParameter& parameter_;
  const at::Tensor gradient_;
  const int me_;
  const ShardRange own_;
};

}  // namespace brigade
