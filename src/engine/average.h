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

// average() as a hook.
class Average : public Hook {
 public:
  std::string name() const override { return "allreduce"; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return average(std::move(bucket), comm);
  }
};

// As reduce_by, for hooks that touch every gradient anyway: where `inner` is Average, and
// dividing last gives the same bits but at the ends of the number range, the sum.
struct Undivided {
  at::Tensor result;
  double scale = 1;  // what the result is still to be multiplied with
};
Task<Undivided> reduce_undivided(Hook& inner, Bucket bucket, Comm& comm);

}  // namespace brigade::engine
