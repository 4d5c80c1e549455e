#include "kernels/sum_squares.h"

#include <algorithm>

namespace brigade::kernels {
namespace {

// Few enough additions a lane that rounding does not add up, enough for the sums of lanes
// not to count.
constexpr std::size_t kBlock = 1024, kLanes = 32;

}  // namespace

double sum_squares(std::span<const float> values) noexcept {
  double sum = 0;
  for (std::size_t at = 0; at < values.size(); at += kBlock) {
    const float* x = values.data() + at;
    const std::size_t count = std::min(kBlock, values.size() - at);
    float lanes[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < count; ++i) lanes[i % kLanes] += x[i] * x[i];
    for (const float lane : lanes) sum += static_cast<double>(lane);
  }
  return sum;
}

}  // namespace brigade::kernels
