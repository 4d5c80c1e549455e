// Parameters in shards. Every parameter is divided into as many shards as there are ranks;
// each rank owns one, in the order of the ranks. Their lengths are equal, except that some
// have one element more. Which ranks have the longer ones changes from parameter to
// parameter, so that what is left over is spread, too. It depends on nothing else: not on
// buckets, not on other parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace brigade {

struct ShardRange {
  int64_t begin = 0;
  int64_t length = 0;
};
// The shard of parameter number `index`, of n elements, that belongs to `rank`.
ShardRange shard_range(int64_t n, size_t index, int rank, int ranks);

// A parameter, and where all ranks' shards of it lie in memory.
class ShardedParameter {
 public:
  // `group`: the number of the group of parameters that it belongs to, for its owner.
  // REQUIRES: the parameter is dense, and no two elements share memory.
  ShardedParameter(std::string name, at::Tensor parameter, size_t index, size_t group,
                   int ranks);
  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  size_t group() const { return group_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  ShardRange range(int rank) const {
    return shard_range(parameter_.numel(), index_, rank, ranks());
  }
  // Flat, with the parameter's memory; the same tensor each time.
  const at::Tensor& shard(int rank) const;

 private:
  std::string name_;
  at::Tensor parameter_;
  size_t index_;
  size_t group_;
  std::vector<at::Tensor> shards_;
};

// A parameter of a bucket.
struct ShardedItem {
  const ShardedParameter* parameter = nullptr;
  int64_t offset = 0;  // of its gradient in the bucket
  bool used = true;    // by a rank
};

// The mean of all ranks' gradients of a shard, added up in the order given. `divided`: they
// have been divided by their number already. `mean` may be one of them.
void mean_of_shards(const std::vector<at::Tensor>& by_rank, bool divided, at::Tensor mean);

// How the small parameters of a bucket travel together. Each rank gets one message, a
// *chunk*: its shards of all the parameters one after the other, filled up to the length of
// the longest chunk. The other ranks' chunks lie first in memory, by rank, then this rank's
// own.
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
