// Norms of gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::optim {

// In one pass; of the values of a sparse one, which must be coalesced. Waits for a device.
double squares_in(const at::Tensor& gradient);

// What is added to a norm that something is divided by.
inline constexpr double kAgainstZero = 1e-6;
// What gradients of norm sqrt(squares) are to be multiplied with; 1: left as they are.
double clipping_factor(double squares, double max_norm);

}  // namespace brigade::optim
