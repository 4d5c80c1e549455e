#include "kernels/affine_u8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

// Floats as integers in the same order; NaN and Inf are at the two ends.
struct Range {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  std::int32_t most = std::numeric_limits<std::int32_t>::min();
};
BRIGADE_BODY std::int32_t flip_if_negative(std::int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// A header, and the power of two that keeps differences of a wide range below overflow.
struct Grid {
  float scale, low;  // both times `shrink`
  float shrink, grow;
};
BRIGADE_BODY Grid grid_of(AffineHeader header) {
  const bool wide = header.scale > 0x1p100f;
  const float shrink = wide ? 0.5f : 1.0f;
  return {header.scale * shrink, header.low * shrink, shrink, wide ? 2.0f : 1.0f};
}

AffineHeader header_of(Range range) noexcept {
  const float least = float_of(flip_if_negative(range.least));
  const float most = float_of(flip_if_negative(range.most));
  if (!std::isfinite(least) || !std::isfinite(most)) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, nan};
  }
  const float low = std::clamp(least, -kLargest, kLargest);
  const float high = std::clamp(most, -kLargest, kLargest);
  if (low == high) return {0.0f, low + 0.0f};  // + 0: never -0
  const float scale = step_of(static_cast<double>(high) - static_cast<double>(low), 255.0);
  if (low > 0.0f || high < 0.0f) return {scale, low};
  const auto zero_code =
      static_cast<float>(std::nearbyint(-static_cast<double>(low) / scale));
  return {scale, 0.0f - zero_code * scale};
}

template <bool kResidual>
BRIGADE_BODY Range range_body(const float* __restrict src, float factor,
                              const float* __restrict residual, std::size_t size,
                              Range range) {
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t key =
        flip_if_negative(bits_of(value_at<kResidual>(src, factor, residual, i)));
    range.least = key < range.least ? key : range.least;
    range.most = key > range.most ? key : range.most;
  }
  return range;
}

template <bool kResidual>
BRIGADE_BODY void encode_body(const float* __restrict src, float factor,
                              float* __restrict residual, std::size_t size, Grid grid,
                              std::uint8_t* __restrict codes) {
  for (std::size_t i = 0; i < size; ++i) {
    const float p = value_at<kResidual>(src, factor, residual, i);
    const float rounded = round_within<0, 255>((p * grid.shrink - grid.low) / grid.scale);
    codes[i] = static_cast<std::uint8_t>(bits_of(rounded));
    if constexpr (kResidual) {
      residual[i] = p - (grid.low + (rounded - kRounder) * grid.scale) * grid.grow;
    }
  }
}

template <bool kAdd>
BRIGADE_BODY void decode_body(Grid grid, const std::uint8_t* __restrict codes,
                              float* __restrict dst, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const float decoded =
        (grid.low + static_cast<float>(codes[i]) * grid.scale) * grid.grow;
    dst[i] = kAdd ? dst[i] + decoded : decoded;
  }
}

// The bodies, compiled for one instruction set.
#define BRIGADE_AFFINE_VARIANT(Name, Target)                                               \
  template <bool kResidual>                                                                \
  struct Name {                                                                            \
    Target static Range range(const float* src, float factor, const float* residual,       \
                              std::size_t size, Range sofar) noexcept {                    \
      return range_body<kResidual>(src, factor, residual, size, sofar);                    \
    }                                                                                      \
    Target static void encode(const float* src, float factor, float* residual,             \
                              std::size_t size, Grid grid, std::uint8_t* codes) noexcept { \
      encode_body<kResidual>(src, factor, residual, size, grid, codes);                    \
    }                                                                                      \
    Target static void decode(Grid grid, const std::uint8_t* codes, float* dst,            \
                              std::size_t size) noexcept {                                 \
      decode_body<false>(grid, codes, dst, size);                                          \
    }                                                                                      \
    Target static void decode_add(Grid grid, const std::uint8_t* codes, float* dst,        \
                                  std::size_t size) noexcept {                             \
      decode_body<true>(grid, codes, dst, size);                                           \
    }                                                                                      \
  }
BRIGADE_AFFINE_VARIANT(Portable, );
BRIGADE_AFFINE_VARIANT(Avx2, BRIGADE_AVX2);
BRIGADE_AFFINE_VARIANT(Avx512, BRIGADE_AVX512);
#undef BRIGADE_AFFINE_VARIANT

// Encodes a block that is constant or not finite: it decodes to the same value everywhere.
void encode_flat(const float* src, float factor, float* residual, std::size_t size,
                 AffineHeader header, std::uint8_t* codes) noexcept {
  std::memset(codes, 0, size);
  if (residual == nullptr || std::isnan(header.low)) return;
  for (std::size_t i = 0; i < size; ++i) {
    residual[i] = value_at<true>(src, factor, residual, i) - header.low;
  }
}

template <class Variant>
AffineHeader encode_block(const float* src, float factor, float* residual, std::size_t size,
                          std::uint8_t* codes) noexcept {
  const AffineHeader header = header_of(Variant::range(src, factor, residual, size, {}));
  if (header.scale > 0.0f) {
    Variant::encode(src, factor, residual, size, grid_of(header), codes);
  } else {
    encode_flat(src, factor, residual, size, header, codes);
  }
  return header;
}

template <template <bool> class Variant>
void encode(std::span<const float> src, float factor, std::span<float> residual,
            std::size_t block, std::span<AffineHeader> headers,
            std::span<std::uint8_t> codes) noexcept {
  for (std::size_t at = 0, index = 0; at < src.size(); at += block, ++index) {
    const std::size_t size = std::min(block, src.size() - at);
    headers[index] =
        residual.empty()
            ? encode_block<Variant<false>>(src.data() + at, factor, nullptr, size,
                                           codes.data() + at)
            : encode_block<Variant<true>>(src.data() + at, factor, residual.data() + at,
                                          size, codes.data() + at);
  }
}

template <template <bool> class Variant>
void decode(std::span<const AffineHeader> headers, std::size_t block,
            std::span<const std::uint8_t> codes, std::span<float> dst) noexcept {
  for (std::size_t at = 0, index = 0; at < dst.size(); at += block, ++index) {
    const Grid grid = grid_of(headers[index]);
    Variant<false>::decode(grid, codes.data() + at, dst.data() + at,
                           std::min(block, dst.size() - at));
  }
}

template <template <bool> class Variant>
void decode_add(std::span<const AffineHeader> headers, std::size_t block,
                std::span<const std::uint8_t> codes, std::span<float> dst) noexcept {
  for (std::size_t at = 0, index = 0; at < dst.size(); at += block, ++index) {
    const Grid grid = grid_of(headers[index]);
    Variant<false>::decode_add(grid, codes.data() + at, dst.data() + at,
                               std::min(block, dst.size() - at));
  }
}

template <template <bool> class Variant>
constexpr AffineKernels kKernels{encode<Variant>, decode<Variant>, decode_add<Variant>};

}  // namespace

const AffineKernels& affine_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Avx512>;
  if (isa == Isa::avx2) return kKernels<Avx2>;
  return kKernels<Portable>;
}

}  // namespace brigade::kernels
