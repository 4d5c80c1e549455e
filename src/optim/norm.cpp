#include "optim/norm.h"

#include <ATen/ATen.h>

#include <cmath>

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

}  // namespace brigade::optim
