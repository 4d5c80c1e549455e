// Parameters in shards. Every parameter is divided into a shard for each rank, in the order
// of the ranks. Lengths differ by one element at most. The ranks with the longer shards
// change from parameter to parameter, so that these are spread evenly; they depend neither
// on buckets nor on other parameters.
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
// The range of `rank`'s shard of parameter number `index`, which has n elements.
ShardRange shard_range(int64_t n, size_t index, int rank, int ranks);

// A parameter, and all ranks' shards of it in memory.
class ShardedParameter {
 public:
  // `group`: the number of its group of parameters, for the caller.
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
  // A flat view of the parameter's memory; the same tensor each time.
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
  int64_t offset = 0;  // its gradient's, in the bucket
  bool used = true;    // by some rank
};

// The mean of all ranks' gradients of a shard, summed in the order given. `divided`: they
// are divided by their number already. `mean` may be one of them.
void mean_of_shards(const std::vector<at::Tensor>& by_rank, bool divided, at::Tensor mean);

// The common messages of a bucket's small parameters. Each rank gets one message, a
// *chunk*: its shards of all the parameters one after the other, padded to the length of
// the longest chunk. In memory, the other ranks' chunks come first, by rank, then this
// rank's own.
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
