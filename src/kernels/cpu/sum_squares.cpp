#include "kernels/sum_squares.h"

#include <algorithm>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

// Few enough additions a lane that rounding does not add up, enough for the sums of lanes
// not to count.
constexpr std::size_t kBlock = 1024, kLanes = 32;

template <bool kScale, class Float>
BRIGADE_BODY float square_at(Float* x, float factor, std::size_t i) {
  if constexpr (kScale) x[i] *= factor;
  return x[i] * x[i];
}

template <bool kScale, class Float>
BRIGADE_BODY double squares_body(Float* values, float factor, std::size_t size) {
  double sums[kLanes] = {};
  for (std::size_t at = 0; at < size; at += kBlock) {
    Float* x = values + at;
    const std::size_t count = std::min(kBlock, size - at);
    float lanes[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += square_at<kScale>(x, factor, i + lane);
    for (; i < count; ++i) lanes[i % kLanes] += square_at<kScale>(x, factor, i);
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(lanes[lane]);
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

// The bodies, compiled for one instruction set.
#define BRIGADE_SQUARES_VARIANT(name, Target)                                          \
  Target double sum_##name(std::span<const float> values) noexcept {                   \
    return squares_body<false>(values.data(), 1, values.size());                       \
  }                                                                                    \
  Target double scale_and_sum_##name(std::span<float> values, float factor) noexcept { \
    return squares_body<true>(values.data(), factor, values.size());                   \
  }                                                                                    \
  constexpr SquaresKernels k_##name { sum_##name, scale_and_sum_##name }
BRIGADE_SQUARES_VARIANT(portable, );
BRIGADE_SQUARES_VARIANT(avx2, BRIGADE_AVX2);
BRIGADE_SQUARES_VARIANT(avx512, BRIGADE_AVX512);
#undef BRIGADE_SQUARES_VARIANT

}  // namespace

const SquaresKernels& squares_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return k_avx512;
  if (isa == Isa::avx2) return k_avx2;
  return k_portable;
}

}  // namespace brigade::kernels
