// The compressed all-reduce that every dense codec uses.
//
// Vocabulary. Every rank *owns* one *chunk* of the values. Phase one brings the other
// ranks' messages for a chunk to its owner, who decodes them and adds them, ranks in order,
// to its own values in float32. Phase two brings the owner's mean, encoded, to everybody.
// Many values go in *segments*, each by itself, several under way at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "base/buffer_pool.h"
#include "brigade/hook.h"
#include "codec/codec.h"

namespace brigade {

// One serves one hook: the memory of its messages is kept from step to step.
class TwoPhase {
 public:
  explicit TwoPhase(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  // `values`, one dimension of contiguous float32, becomes the mean over the ranks, up to
  // the codec's error; every rank, the owner too, writes what it decodes, so all end with
  // the same bits. With one rank nothing happens. `residual`: undefined, or error feedback
  // of the same size, updated: over the ranks, the mean of the residuals is exactly what
  // the results so far lack (the owner takes the error of phase two upon itself, times the
  // number of ranks; its own values lose nothing in phase one). Sends 2 (W - 1) / W times
  // the codec's bytes a rank. Buckets may be under way side by side.
  Task<void> all_reduce(at::Tensor values, at::Tensor residual, Comm& comm);

 private:
  Task<void> reduce_segment(at::Tensor values, at::Tensor residual, Comm& comm);

  const std::shared_ptr<const Codec> codec_;
  base::BufferPool pool_;
};

}  // namespace brigade
