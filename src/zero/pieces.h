// Parameters in pieces. Every parameter is cut into as many pieces of equal length (but for
// one element) as there are ranks; each rank owns one, in the order of the ranks. Whose are
// longer, changes from parameter to parameter, so that what is left over is spread, too. It
// depends on nothing else: not on buckets, not on other parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "brigade/zero/zero.h"
#include "optim/step_hook.h"

namespace brigade::optim {

struct Range {
  int64_t begin = 0;
  int64_t length = 0;
};
// The piece of parameter number `index`, of n elements, that belongs to `rank`.
Range piece_of(int64_t n, size_t index, int rank, int ranks);

// A parameter, and where all ranks' pieces of it lie in memory.
class CutParameter {
 public:
  // REQUIRES: dense, no overlaps.
  CutParameter(std::string name, at::Tensor parameter, size_t index, size_t group,
               int ranks);
  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  size_t group() const { return group_; }
  int ranks() const { return static_cast<int>(pieces_.size()); }
  Range range(int rank) const {
    return piece_of(parameter_.numel(), index_, rank, ranks());
  }
  // Flat, with the parameter's memory; the same tensor each time.
  const at::Tensor& piece(int rank) const;

 private:
  std::string name_;
  at::Tensor parameter_;
  size_t index_;
  size_t group_;
  std::vector<at::Tensor> pieces_;
};

// The mean of everyone's piece, added up in the order given. `divided`: they have been
// divided by their number already. `mean` may be one of them.
void add_up(const std::vector<at::Tensor>& by_rank, bool divided, at::Tensor mean);

// A bucket's way over the wire in two messages: for each rank its pieces of all the
// parameters one after the other, a *chunk*, filled up to the same length. The other ranks'
// chunks come first, by rank, then this rank's own.
class PieceLayout {
 public:
  struct Item {
    const CutParameter* parameter = nullptr;
    int64_t offset = 0;  // of its gradient in the bucket
    bool used = true;
  };
  // REQUIRES: two ranks or more.
  PieceLayout(std::vector<Item> items, int ranks, int me);

  const std::vector<Item>& items() const { return items_; }
  int64_t length() const { return length_; }  // a chunk's
  at::Tensor chunk(const at::Tensor& chunks, int rank) const;
  at::Tensor others(const at::Tensor& chunks) const;
  // The other ranks' pieces of a bucket of gradients into their chunks.
  void read_gradients(const at::Tensor& bucket, at::Tensor chunks) const;
  // The mean of this rank's pieces, added up in the order of the ranks: its own are in the
  // bucket, the others' in their chunks. Changes its own chunk. `divided`: the others'
  // have been divided by the number of ranks already.
  void average(const at::Tensor& bucket, at::Tensor chunks, bool divided,
               at::Tensor mean) const;
  // This rank's pieces of the parameters into `chunk`; from the others' chunks into the
  // parameters.
  void read(at::Tensor chunk) const;
  void write(const std::function<at::Tensor(int rank)>& chunk_of) const;

 private:
  void average_floats(const at::Tensor& bucket, const at::Tensor& chunks,
                      const at::Tensor& mean) const;

  std::vector<Item> items_;
  int ranks_;
  int me_;
  int64_t length_ = 0;
  std::vector<int64_t> filled_;  // of each rank's chunk
};

// State of pieces, from shards of any number of ranks, as flat state of whole parameters,
// and back. Keys that are of none of the parameters are passed over. Throws ConfigError
// where a piece is missing.
OptimizerState join_pieces(const std::vector<OptimizerState>& shards,
                           const std::vector<CutParameter>& parameters);
OptimizerState cut_pieces(const OptimizerState& whole,
                          const std::vector<CutParameter>& parameters, int rank);
// Flat state as one in the parameters' shapes, and back.
OptimizerState shape_state(OptimizerState flat,
                           const std::vector<CutParameter>& parameters);
OptimizerState flatten_state(OptimizerState shaped,
                             const std::vector<CutParameter>& parameters);

}  // namespace brigade::optim
