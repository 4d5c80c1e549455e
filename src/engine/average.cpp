#include "engine/average.h"

#include <ATen/ATen.h>

namespace brigade::engine {

Task<at::Tensor> average(Bucket bucket, Comm& comm) {
  at::Tensor mean = bucket.buffer();
  if (comm.size() == 1) co_return mean;
  // In place a sparse tensor's values would be those of the gradient.
  if (mean.is_sparse()) {
    mean = mean.div(comm.size());
  } else {
    mean.div_(comm.size());
  }
  co_await comm.all_reduce(mean);
  co_return mean;
}

Task<at::Tensor> reduce_by(Hook& inner, Bucket bucket, Comm& comm) {
  if (bucket.buffer().is_sparse() && !inner.takes_sparse()) {
    co_return co_await average(bucket, comm);
  }
  co_return co_await inner.reduce(bucket, comm);
}

}  // namespace brigade::engine
