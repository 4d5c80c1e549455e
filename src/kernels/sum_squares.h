// The sum of squares of an array of float32.
#pragma once
#include <cstddef>
#include <span>

namespace brigade::kernels {

// Each block of some thousand values in float32, by lanes; the blocks in float64. Its
// relative error is below 1e-6 whatever the size. Zero elements give 0; any alignment.
double sum_squares(std::span<const float> values) noexcept;

}  // namespace brigade::kernels
