// The sum of squares of an array of float32.
#pragma once
#include <cstddef>
#include <span>

#include "kernels/isa.h"

namespace brigade::kernels {

// Sums each block of 1,024 values in float32, by lanes, and the blocks in float64. The
// relative error is below 1e-6 for any size. Zero elements give 0; any alignment is fine.
using SumSquares = double (*)(std::span<const float> values) noexcept;

// REQUIRES: isa_runs(isa). Isa::portable is the reference; the others equal it bit for bit,
// so that ranks on different machines get the same.
SumSquares sum_squares_kernel(Isa isa = isa_best()) noexcept;

inline double sum_squares(std::span<const float> values) noexcept {
  return sum_squares_kernel()(values);
}

}  // namespace brigade::kernels
