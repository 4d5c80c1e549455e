// An all-reduce that always adds up in the order of the ranks, value by value. So a value's
// mean has the same bits whatever bucket, chunk or segment it is in, on every backend. It
// moves as many bytes as a ring does.
#pragma once
#include <ATen/core/Tensor.h>

#include "base/buffer_pool.h"
#include "brigade/hook.h"

namespace brigade {

// One serves one hook: memory is kept from step to step.
class FixedOrder {
 public:
  // `values`, one dimension, contiguous, float32 or float64, becomes (x0 + x1 + x2 + …) /
  // W. Buckets may be under way side by side.
  Task<void> mean(at::Tensor values, Comm& comm);

 private:
  Task<void> mean_of_segment(at::Tensor values, Comm& comm);

  base::BufferPool pool_;
};

}  // namespace brigade
