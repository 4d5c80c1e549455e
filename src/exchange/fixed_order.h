// An all-reduce that sums in the order of the ranks, value by value, so that a value's mean
// has the same bits in any bucket, chunk or segment, on every backend. It sends as many
// bytes as a ring.
#pragma once
#include <ATen/core/Tensor.h>

#include "base/buffer_pool.h"
#include "brigade/hook.h"

namespace brigade {

// Each hook has one; it keeps memory from step to step.
class FixedOrder {
 public:
  // `values`, one dimension, contiguous, float32 or float64, becomes (x0 + x1 + x2 + …) /
  // W. Several buckets may be under way at once.
  Task<void> mean(at::Tensor values, Comm& comm);

 private:
  Task<void> mean_of_segment(at::Tensor values, Comm& comm);

  base::BufferPool pool_;
};

}  // namespace brigade
