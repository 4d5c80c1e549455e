// The mean of arrays of float32.
#pragma once
#include <cstddef>
#include <span>

namespace brigade::kernels {

// out[i] = (parts[0][i] + parts[1][i] + …) / parts.size(), summed in this order, in one
// pass over memory. `out` may be one of the parts, and overlaps no other. Zero elements are
// fine; arrays need only a float's alignment. REQUIRES: one part or more, each of `size`
// elements.
void mean(std::span<const float* const> parts, std::size_t size, float* out) noexcept;

}  // namespace brigade::kernels
