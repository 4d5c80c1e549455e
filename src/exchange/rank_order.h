// Sums of all ranks' values in the order given, so that they have the same bits everywhere.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/mean.h"

namespace brigade {

// Computes the mean in one pass with the kernel for floats on the CPU. False: there is no
// kernel for these. `mean` may be one of the inputs.
inline bool mean_by_kernel(const std::vector<at::Tensor>& by_rank, at::Tensor& mean) {
  if (!mean.is_cpu() || mean.scalar_type() != at::kFloat) return false;
  std::vector<const float*> parts;
  for (const at::Tensor& part : by_rank) parts.push_back(part.const_data_ptr<float>());
  kernels::mean(parts, static_cast<size_t>(mean.numel()), mean.mutable_data_ptr<float>());
  return true;
}

inline at::Tensor sum_in_order(const std::vector<at::Tensor>& by_rank) {
  at::Tensor sum = by_rank.front().clone();
  for (size_t rank = 1; rank < by_rank.size(); ++rank) sum.add_(by_rank[rank]);
  return sum;
}

}  // namespace brigade
