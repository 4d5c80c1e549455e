// Exchanges one large parameter without copies: its gradient is sent from the bucket, and
// its values arrive in the parameter's memory.
#pragma once
#include <ATen/core/Tensor.h>

#include "brigade/hook.h"
#include "exchange/sharded_parameter.h"

namespace brigade {

class InPlaceExchange {
 public:
  // Whether copying into common messages would cost more than a collective of its own.
  // Equal on all ranks.
  static bool pays(const ShardedParameter& parameter);

  // `gradient`: the parameter's part of the bucket. Keeps a reference to the parameter.
  InPlaceExchange(const ShardedParameter& parameter, at::Tensor gradient, int me);
  // The number of scratch elements that the exchange needs.
  int64_t scratch() const { return parts() * own_.length; }
  // Returns the mean of this rank's shard, summed in the order of the ranks. It is in the
  // bucket, which has no other use afterwards.
  Task<at::Tensor> reduce_scatter(at::Tensor scratch, Comm& comm) const;
  // Receives the other ranks' shards of the parameter.
  Task<void> all_gather(at::Tensor scratch, Comm& comm) const;

 private:
  int ranks() const { return parameter_.ranks(); }
  // If this rank's shard is in the middle, it is sent too (to itself), so that the send
  // buffer is contiguous.
  bool between() const { return me_ > 0 && me_ + 1 < ranks(); }
  int64_t parts() const { return ranks() - (between() ? 0 : 1); }
  int64_t place_of(int rank) const { return rank > me_ && !between() ? rank - 1 : rank; }
  at::Tensor stretch(const at::Tensor& whole) const;
  // The length of each rank's shard in the send buffer.
  std::vector<int64_t> lengths_of_theirs() const;
  // This rank's length, for each part.
  std::vector<int64_t> lengths_of_mine() const;

  const ShardedParameter& parameter_;
  const at::Tensor gradient_;
  const int me_;
  const ShardRange own_;
};

}  // namespace brigade
