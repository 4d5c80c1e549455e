// Finds the values of a block with the largest magnitudes, and their places (indices).
//
// Block: p = src * factor + residual; the `count` largest |p| are kept, the first ones of
// equals, by ascending place; residual = p elsewhere, and 0 where p was kept. If a p is not
// finite, all kept values are NaN, and the residual does not change.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace brigade::kernels {

inline constexpr std::size_t kTopKBlock = std::size_t{1} << 16;

// Makes a few passes over the block, which is in a cache. `residual` may be empty: then it
// counts as zero, and none is written. REQUIRES: src.size() <= kTopKBlock, values.size() ==
// places.size() <= src.size(); residual empty or of src's size; nothing overlaps.
void top_k(std::span<const float> src, float factor, std::span<float> residual,
           std::span<float> values, std::span<std::uint16_t> places) noexcept;

// dst becomes 0, unless `add`; then dst[place] += value. If the first value is NaN, all of
// dst become NaN. Places beyond dst are ignored. REQUIRES: values.size() == places.size();
// nothing overlaps.
void top_k_decode(std::span<const float> values, std::span<const std::uint16_t> places,
                  std::span<float> dst, bool add) noexcept;

}  // namespace brigade::kernels
