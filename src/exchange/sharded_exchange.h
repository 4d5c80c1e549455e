// Reduce-scatter of a bucket of gradients, all-gather of the parameters that they change.
//
// Vocabulary. Every rank owns one *shard* of every parameter. First each rank gets the mean
// of its shards' gradients; the caller changes its shards of the parameters by it; then
// each rank gets the other ranks' shards. Large parameters travel one by one, in place and
// side by side; small ones in common messages.
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

// One serves one hook. Two buckets at a time are under way, in memory that is used again
// and again: memory for all of them would take what sharding saves.
class ShardedExchange {
 public:
  // Changes this rank's shard of `item` by the mean of its gradients. Called once for each
  // item; for large parameters from several threads.
  using Change = std::function<void(const ShardedItem& item, const at::Tensor& mean)>;

  // `bucket`: the gradients, flat; it has any content afterwards.
  // REQUIRES: two ranks or more; items of the same parameters on all ranks.
  Task<void> run(std::vector<ShardedItem> items, at::Tensor bucket, Change change,
                 Comm& comm);
  // Before each pass: frees memory that the last pass had no use for.
  void begin_pass() { pool_.trim(); }

 private:
  Task<void> run_in(at::Tensor memory, std::vector<ShardedItem> large,
                    std::vector<InPlaceExchange> in_place, ShardLayout small,
                    at::Tensor bucket, const Change& change, Comm& comm);

  Semaphore turns_{2};  // buckets at a time
  base::BufferPool pool_;
};

}  // namespace brigade
