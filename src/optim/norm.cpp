#include "optim/norm.h"

#include <ATen/ATen.h>

#include <cmath>

#include "brigade/measuring_hook.h"
#include "kernels/sum_squares.h"

namespace brigade::optim {

double squares_in(const at::Tensor& gradient) {
  if (gradient.is_sparse()) return squares_in(gradient._values());
  if (gradient.is_cpu() && gradient.scalar_type() == at::kFloat &&
      gradient.is_non_overlapping_and_dense()) {
    return kernels::sum_squares(
        {gradient.const_data_ptr<float>(), static_cast<std::size_t>(gradient.numel())});
  }
  const double norm = at::linalg_vector_norm(gradient).to(at::kDouble).item<double>();
  return norm * norm;
}

double clipping_factor(double squares, double max_norm) {
  return std::min(max_norm / (std::sqrt(squares) + kAgainstZero), 1.0);
}

Task<MeasuringWrapper::Measured> MeasuringWrapper::reduce_inner_measured(Bucket bucket,
                                                                         Comm& comm) const {
  Measured measured;
  if (!bucket.buffer().is_cpu()) {
    measured.result = co_await reduce_inner(bucket, comm);
    co_return measured;
  }
  auto* measuring = dynamic_cast<MeasuringHook*>(&inner());
  if (measuring && !bucket.buffer().is_sparse()) {
    measured.result =
        co_await measuring->reduce_and_measure(bucket, comm, &measured.squares);
    co_return measured;
  }
  const Undivided undivided = co_await reduce_inner_undivided(bucket, comm);
  measured.result = undivided.result;
  if (undivided.scale == 1) co_return measured;
  if (measured.result.scalar_type() == at::kFloat && measured.result.is_contiguous()) {
    measured.squares = kernels::squares_kernels().scale_and_sum(
        {measured.result.mutable_data_ptr<float>(),
         static_cast<std::size_t>(measured.result.numel())},
        static_cast<float>(undivided.scale));
  } else {
    measured.result.mul_(undivided.scale);
  }
  co_return measured;
}

}  // namespace brigade::optim
