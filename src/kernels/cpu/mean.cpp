#include "kernels/mean.h"

#include <algorithm>

namespace brigade::kernels {
namespace {

constexpr std::size_t kBlock = 2048;  // two of them fit the first cache

void add(const float* __restrict x, float* __restrict sum, std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) sum[i] += x[i];
}
void divide(const float* __restrict sum, float by, float* __restrict to,
            std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) to[i] = sum[i] / by;
}

}  // namespace

void mean(std::span<const float* const> parts, std::size_t size, float* out) noexcept {
  alignas(64) float sum[kBlock];
  for (std::size_t at = 0; at < size; at += kBlock) {
    const std::size_t count = std::min(kBlock, size - at);
    std::copy_n(parts[0] + at, count, sum);
    for (const float* part : parts.subspan(1)) add(part + at, sum, count);
    divide(sum, static_cast<float>(parts.size()), out + at, count);
  }
}

}  // namespace brigade::kernels
