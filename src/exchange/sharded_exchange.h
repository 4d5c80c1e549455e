// A reduce-scatter of a bucket of gradients, and an all-gather of the changed parameters.
//
// Vocabulary. Every rank owns one *shard* of every parameter. First each rank gets the mean
// of its shards' gradients; the caller changes its shards of the parameters by it; then
// each rank gets the other ranks' shards. Large parameters are sent one by one, in place
// and concurrently; small ones in common messages.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "base/buffer_pool.h"
#include "brigade/compose_hooks.h"
#include "brigade/hook.h"
#include "exchange/in_place_exchange.h"
#include "exchange/sharded_parameter.h"

namespace brigade {

// Each hook has one. Two buckets at a time are under way, in memory that is reused: memory
// for all of them would cost what sharding saves.
class ShardedExchange {
 public:
  // Changes this rank's shard of `item` by the mean of its gradients. Called once for each
  // item; for large parameters from several threads.
  using Change = std::function<void(const ShardedItem& item, const at::Tensor& mean)>;

  // `bucket`: the gradients, flat; it has any content afterwards.
  // REQUIRES: two ranks or more; items of the same parameters on all ranks.
  Task<void> run(std::vector<ShardedItem> items, at::Tensor bucket, Change change,
                 Comm& comm);
  // To be called before each pass: frees memory that the last pass did not use.
  void begin_pass() { pool_.trim(); }

 private:
  Task<void> run_in(at::Tensor memory, std::vector<ShardedItem> large,
                    std::vector<InPlaceExchange> in_place, ShardLayout small,
                    at::Tensor bucket, const Change& change, Comm& comm);

  Semaphore turns_{2};  // buckets at a time
  base::BufferPool pool_;
};

}  // namespace brigade
