// The plain mean, which many hooks fall back on.
#pragma once
#include "brigade/hook.h"

namespace brigade::engine {

// Gives the mean of the bucket over the ranks, in the bucket's own buffer. Divides before
// it adds, so that no sum overflows. The mean of a sparse bucket is in a new tensor.
Task<at::Tensor> average(Bucket bucket, Comm& comm);

// For hooks around another: gives what `inner` makes of the bucket. If the bucket is sparse
// and `inner` does not take such, gives the mean. `inner` must live until the task ends.
Task<at::Tensor> reduce_by(Hook& inner, Bucket bucket, Comm& comm);

// average() as a hook.
class Average : public Hook {
 public:
  std::string name() const override { return "allreduce"; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return average(std::move(bucket), comm);
  }
};

// As reduce_by, for hooks that touch every gradient anyway. If the inner hook is the plain
// mean, returns the undivided sum and a scale. The bits are those of the mean, except at
// the ends of the number range.
struct Undivided {
  at::Tensor result;
  double scale = 1;  // the result is still to be multiplied with it
};
Task<Undivided> reduce_undivided(Hook& inner, Bucket bucket, Comm& comm);

}  // namespace brigade::engine
