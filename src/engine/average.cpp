#include "engine/average.h"

#include <ATen/ATen.h>

#include <bit>

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

Task<Undivided> reduce_undivided(Hook& inner, Bucket bucket, Comm& comm) {
  Undivided reduced;
  reduced.result = bucket.buffer();
  const auto ranks = static_cast<unsigned>(comm.size());
  const bool wide = reduced.result.scalar_type() == at::kFloat ||
                    reduced.result.scalar_type() == at::kDouble;
  if (ranks > 1 && std::has_single_bit(ranks) && wide && reduced.result.is_cpu() &&
      !reduced.result.is_sparse() && dynamic_cast<const Average*>(&inner)) {
    co_await comm.all_reduce(reduced.result);
    reduced.scale = 1.0 / ranks;
  } else {
    reduced.result = co_await reduce_by(inner, bucket, comm);
  }
  co_return reduced;
}

}  // namespace brigade::engine
