#include "kernels/sum_squares.h"

#include <algorithm>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

// Each lane has few enough additions to keep rounding small, and enough to make the final
// sums of lanes cheap.
constexpr std::size_t kBlock = 1024, kLanes = 32;

BRIGADE_BODY double sum_body(const float* values, std::size_t size) {
  double sums[kLanes] = {};
  for (std::size_t at = 0; at < size; at += kBlock) {
    const float* x = values + at;
    const std::size_t count = std::min(kBlock, size - at);
    float lanes[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < count; ++i) lanes[i % kLanes] += x[i] * x[i];
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(lanes[lane]);
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

// The body, compiled for one instruction set.
#define BRIGADE_SUM_VARIANT(name, Target)                            \
  Target double sum_##name(std::span<const float> values) noexcept { \
    return sum_body(values.data(), values.size());                   \
  }
BRIGADE_SUM_VARIANT(portable, )
BRIGADE_SUM_VARIANT(avx2, BRIGADE_AVX2)
BRIGADE_SUM_VARIANT(avx512, BRIGADE_AVX512)
#undef BRIGADE_SUM_VARIANT

}  // namespace

SumSquares sum_squares_kernel(Isa isa) noexcept {
  if (isa == Isa::avx512) return sum_avx512;
  if (isa == Isa::avx2) return sum_avx2;
  return sum_portable;
}

}  // namespace brigade::kernels
