// How the small parameters of a bucket travel together. Each rank gets one message, a
// *chunk*: its shards of all the parameters one after the other, filled up to the length of
// the longest chunk. The other ranks' chunks lie first in memory, by rank, then this rank's
// own.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "exchange/sharded_parameter.h"

namespace brigade {

class ShardLayout {
 public:
  // REQUIRES: two ranks or more.
  ShardLayout(std::vector<ShardedItem> items, int ranks, int me);

  const std::vector<ShardedItem>& items() const { return items_; }
  int64_t length() const { return length_; }  // of a chunk, in elements
  at::Tensor chunk(const at::Tensor& chunks, int rank) const;
  at::Tensor others(const at::Tensor& chunks) const;
  // Copies the other ranks' shards of a bucket of gradients into their chunks.
  void read_gradients(const at::Tensor& bucket, at::Tensor chunks) const;
  // `mean` becomes the mean of this rank's shards, added up in the order of the ranks: its
  // own are in the bucket, the others' in their chunks. Overwrites its own chunk.
  // `divided`: the others' have been divided by the number of ranks already.
  void average(const at::Tensor& bucket, at::Tensor chunks, bool divided,
               at::Tensor mean) const;
  // Copies this rank's shards of the parameters into `chunk`.
  void read(at::Tensor chunk) const;
  // Copies the other ranks' chunks into their shards of the parameters.
  void write(const std::function<at::Tensor(int rank)>& chunk_of) const;

 private:
  void average_floats(const at::Tensor& bucket, const at::Tensor& chunks,
                      const at::Tensor& mean) const;

  std::vector<ShardedItem> items_;
  int ranks_;
  int me_;
  int64_t length_ = 0;
  std::vector<int64_t> filled_;  // of each rank's chunk
};

}  // namespace brigade
