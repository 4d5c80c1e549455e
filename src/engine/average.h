// The plain mean, which many hooks fall back on.
#pragma once
#include "brigade/hook.h"

namespace brigade::engine {

// The mean of the bucket over the ranks, in its own buffer; divided first, so that no sum
// overflows. Of a sparse bucket in a new tensor.
Task<at::Tensor> average(Bucket bucket, Comm& comm);

// For hooks around another: what `inner` makes of the bucket, or, of a sparse one that it
// does not take, the mean. `inner` must live until it ends.
Task<at::Tensor> reduce_by(Hook& inner, Bucket bucket, Comm& comm);

}  // namespace brigade::engine
