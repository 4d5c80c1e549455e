// Every rank owns one chunk. All ranks send their values of the chunk to it, without
// copies; the owner sums, and sends the mean to all, into its final memory.
#include "exchange/fixed_order.h"

#include <ATen/ATen.h>

#include "exchange/equal_messages.h"
#include "exchange/rank_order.h"
#include "exchange/two_phase.h"

namespace brigade {
namespace {

constexpr int64_t kCacheLine = 16;  // values

// The division of n values into chunks, for one rank.
class OwnedChunks {
 public:
  OwnedChunks(int64_t n, int ranks, int me) : n_(n), ranks_(ranks), me_(me) {
    length_ = (n + ranks - 1) / ranks;
    length_ = (length_ + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  int64_t begin(int rank) const { return std::min(n_, rank * length_); }
  int64_t length(int rank) const { return begin(rank + 1) - begin(rank); }
  int64_t own() const { return length(me_); }
  at::Tensor own_of(const at::Tensor& values) const {
    return values.narrow(0, begin(me_), own());
  }
  // If this rank's chunk is in the middle, it is sent too (to itself), so that the send
  // buffer is contiguous.
  bool between() const { return begin(me_) > 0 && begin(me_ + 1) < n_; }
  at::Tensor stretch(const at::Tensor& values) const {
    if (between()) return values;
    return begin(me_) == 0 ? values.narrow(0, own(), n_ - own())
                           : values.narrow(0, 0, begin(me_));
  }
  int parts() const { return ranks_ - (between() ? 0 : 1); }
  // A rank's part of `scratch`, which holds parts() copies of this rank's chunk.
  at::Tensor part(const at::Tensor& scratch, int rank) const {
    const int place = rank > me_ && !between() ? rank - 1 : rank;
    return scratch.narrow(0, place * own(), own());
  }
  std::vector<int64_t> lengths_of_theirs() const {
    std::vector<int64_t> lengths;
    for (int rank = 0; rank < ranks_; ++rank)
      lengths.push_back(rank != me_ || between() ? length(rank) : 0);
    return lengths;
  }
  std::vector<int64_t> lengths_of_mine() const {
    std::vector<int64_t> lengths(static_cast<size_t>(ranks_), own());
    if (!between()) lengths[static_cast<size_t>(me_)] = 0;
    return lengths;
  }

 private:
  int64_t n_, length_;
  int ranks_, me_;
};

void mean_in_order(const std::vector<at::Tensor>& by_rank, at::Tensor mean) {
  if (mean_by_kernel(by_rank, mean)) return;
  const at::Tensor sum = sum_in_order(by_rank);
  // CUDA would multiply by the reciprocal of a number, with other bits; so this is a
  // tensor.
  at::div_out(mean, sum,
              at::scalar_tensor(static_cast<double>(by_rank.size()), sum.options()));
}

}  // namespace

Task<void> FixedOrder::mean_of_segment(at::Tensor values, Comm& comm) {
  const int ranks = comm.size(), me = comm.rank();
  const OwnedChunks chunks(values.numel(), ranks, me);
  const auto bytes =
      chunks.parts() * chunks.own() * static_cast<int64_t>(values.element_size());
  at::Tensor memory = pool_.take(bytes, values.device());
  at::Tensor scratch = memory.view(values.scalar_type());
  co_await comm.all_to_all(chunks.stretch(values), chunks.lengths_of_theirs(), scratch,
                           chunks.lengths_of_mine());

  at::Tensor own = chunks.own_of(values);
  if (own.numel() > 0) {
    std::vector<at::Tensor> by_rank;
    for (int rank = 0; rank < ranks; ++rank)
      by_rank.push_back(rank == me ? own : chunks.part(scratch, rank));
    mean_in_order(by_rank, own);
  }
  at::Tensor outgoing = own;
  if (chunks.parts() > 1 && own.numel() > 0) {
    scratch.narrow(0, 0, own.numel()).copy_(own);
    repeat_first(scratch, chunks.parts());
    outgoing = scratch;
  }
  co_await comm.all_to_all(outgoing, chunks.lengths_of_mine(), chunks.stretch(values),
                           chunks.lengths_of_theirs());
  pool_.give_back(std::move(memory));
}

Task<void> FixedOrder::mean(at::Tensor values, Comm& comm) {
  if (comm.size() == 1 || values.numel() == 0) co_return;
  const int64_t n = values.numel();
  const int64_t count = values.is_cpu() ? (n + kSegment - 1) / kSegment : 1;
  if (count == 1) {
    co_await mean_of_segment(values, comm);
    co_return;
  }
  co_await comm.split(static_cast<int>(count), [&](int index, Comm& lane) {
    const int64_t begin = index * kSegment;
    return mean_of_segment(values.narrow(0, begin, std::min(kSegment, n - begin)), lane);
  });
}

}  // namespace brigade
