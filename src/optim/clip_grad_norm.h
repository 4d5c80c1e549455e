// Norms of gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::optim {

// Sums squares in one pass. A sparse gradient must be coalesced. Waits for a device.
double squares_in(const at::Tensor& gradient);

// Added to a norm before something is divided by it.
inline constexpr double kAgainstZero = 1e-6;
// The factor for gradients of norm sqrt(squares); 1: they stay as they are.
double clipping_factor(double squares, double max_norm);

}  // namespace brigade::optim
