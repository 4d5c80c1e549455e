#include "kernels/int4_block.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

constexpr float kLargestRotated = 1e37f;  // 32 times it is still finite
constexpr float kLevels = 7 * 32;
constexpr std::size_t kHalfBlock = kInt4Block / 2;

struct Signs {
  alignas(64) float of[kInt4Block];
};
constexpr Signs kSigns = [] {
  Signs signs{};
  for (unsigned i = 0; i < kInt4Block; ++i) signs.of[i] = int4_sign(i);
  return signs;
}();

// One stage of H: sums and differences of values at distance kStride.
template <std::size_t kStride>
BRIGADE_BODY void butterflies(float* __restrict y) {
  for (std::size_t at = 0; at < kInt4Block; at += 2 * kStride) {
    for (std::size_t i = at; i < at + kStride; ++i) {
      const float a = y[i], b = y[i + kStride];
      y[i] = a + b;
      y[i + kStride] = a - b;
    }
  }
}

// y = H y, for all groups of the block.
BRIGADE_BODY void rotate(float* __restrict y) {
  butterflies<64>(y);
  butterflies<32>(y);
  butterflies<16>(y);
  butterflies<8>(y);
  butterflies<4>(y);
}

BRIGADE_BODY std::int32_t top_of(const float* __restrict values) {
  std::int32_t top = 0;
  for (std::size_t i = 0; i < kInt4Block; ++i) {
    const std::int32_t magnitude = bits_of(values[i]) & 0x7fffffff;
    top = magnitude > top ? magnitude : top;
  }
  return top;
}

// `p` is the whole block. Writes its codes, and, with kResidual, p - decoded to `lost`.
template <bool kResidual>
BRIGADE_BODY float encode_rotated(const float* __restrict p, float* __restrict lost,
                                  std::uint8_t* __restrict codes) {
  const std::int32_t top = top_of(p);
  alignas(64) float y[kInt4Block];
  for (std::size_t i = 0; i < kInt4Block; ++i) y[i] = p[i] * kSigns.of[i];
  if (top > bits_of(kLargestRotated)) {
    for (float& value : y) value = std::clamp(value, -kLargestRotated, kLargestRotated);
  }
  rotate(y);
  const std::int32_t rotated_top = top_of(y);
  if (top >= kInfBits || rotated_top == 0) {
    std::memset(codes, 0, kInt4Bytes);
    if constexpr (kResidual) std::memcpy(lost, p, sizeof(y));
    return top >= kInfBits ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  const float step = step_of(float_of(rotated_top), kLevels), scale = 32 * step;
  for (float& value : y) value = round_within<-7, 7>(value / scale);
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const std::int32_t low = bits_of(y[i]) & 15, high = bits_of(y[i + kHalfBlock]) & 15;
    codes[i] = static_cast<std::uint8_t>(low | high << 4);
  }
  if constexpr (kResidual) {
    for (float& value : y) value -= kRounder;
    rotate(y);
    for (std::size_t i = 0; i < kInt4Block; ++i)
      lost[i] = p[i] - y[i] * (kSigns.of[i] * step);
  }
  return step;
}

template <bool kResidual>
BRIGADE_BODY float encode_int4(const float* __restrict src, float factor,
                               float* __restrict residual, std::size_t size,
                               std::uint8_t* __restrict codes) {
  alignas(64) float p[kInt4Block], lost[kInt4Block];
  if (size == kInt4Block) {
    for (std::size_t i = 0; i < kInt4Block; ++i)
      p[i] = value_at<kResidual>(src, factor, residual, i);
  } else {
    std::memset(p, 0, sizeof(p));
    for (std::size_t i = 0; i < size; ++i)
      p[i] = value_at<kResidual>(src, factor, residual, i);
  }
  const float step = encode_rotated<kResidual>(p, lost, codes);
  if constexpr (kResidual) {
    const bool finite = step == step;
    if (finite && size == kInt4Block) std::memcpy(residual, lost, sizeof(lost));
    if (finite && size < kInt4Block) std::memcpy(residual, lost, size * sizeof(float));
  }
  return step;
}

template <bool kAdd>
BRIGADE_BODY void decode_int4(float step, const std::uint8_t* __restrict codes,
                              float* __restrict dst, std::size_t size) {
  alignas(64) float y[kInt4Block];
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const auto low = static_cast<std::int8_t>(codes[i] << 4);
    y[i] = static_cast<float>(low >> 4);
    y[i + kHalfBlock] = static_cast<float>(static_cast<std::int8_t>(codes[i]) >> 4);
  }
  rotate(y);
  const auto write = [&](std::size_t i) {
    const float decoded = y[i] * (kSigns.of[i] * step);
    dst[i] = kAdd ? dst[i] + decoded : decoded;
  };
  // There is no pass that only copies: g++ makes it `rep movs`, which takes longer than all
  // else.
  if (size == kInt4Block) {
    for (std::size_t i = 0; i < kInt4Block; ++i) write(i);
  } else {
    for (std::size_t i = 0; i < size; ++i) write(i);
  }
}

// The bodies, compiled for one instruction set.
#define BRIGADE_INT4_VARIANT(Name, Target)                                                \
  struct Name {                                                                           \
    Target static float encode(const float* src, float factor, std::size_t size,          \
                               std::uint8_t* codes) noexcept {                            \
      return encode_int4<false>(src, factor, nullptr, size, codes);                       \
    }                                                                                     \
    Target static float encode_residual(const float* src, float factor, float* residual,  \
                                        std::size_t size, std::uint8_t* codes) noexcept { \
      return encode_int4<true>(src, factor, residual, size, codes);                       \
    }                                                                                     \
    Target static void decode(float step, const std::uint8_t* codes, float* dst,          \
                              std::size_t size) noexcept {                                \
      decode_int4<false>(step, codes, dst, size);                                         \
    }                                                                                     \
    Target static void decode_add(float step, const std::uint8_t* codes, float* dst,      \
                                  std::size_t size) noexcept {                            \
      decode_int4<true>(step, codes, dst, size);                                          \
    }                                                                                     \
  }
BRIGADE_INT4_VARIANT(Int4Portable, );
BRIGADE_INT4_VARIANT(Int4Avx2, BRIGADE_AVX2);
BRIGADE_INT4_VARIANT(Int4Avx512, BRIGADE_AVX512);
#undef BRIGADE_INT4_VARIANT

// Calls body(block, its offset, its size) for the blocks of `size` values.
template <class Body>
BRIGADE_BODY void each_block(std::size_t size, Body body) {
  for (std::size_t at = 0, block = 0; at < size; at += kInt4Block, ++block)
    body(block, at, std::min(kInt4Block, size - at));
}

template <class Variant>
void encode_all(std::span<const float> src, float factor, std::span<float> residual,
                std::span<float> steps, std::span<std::uint8_t> codes) noexcept {
  each_block(src.size(), [&](std::size_t block, std::size_t at, std::size_t size) {
    std::uint8_t* to = codes.data() + block * kInt4Bytes;
    steps[block] = residual.empty()
                       ? Variant::encode(src.data() + at, factor, size, to)
                       : Variant::encode_residual(src.data() + at, factor,
                                                  residual.data() + at, size, to);
  });
}

template <class Variant>
void decode_all(std::span<const float> steps, std::span<const std::uint8_t> codes,
                std::span<float> dst) noexcept {
  write_tiles(dst.data(), dst.size(), [&](float* to, std::size_t at, std::size_t tile) {
    each_block(tile, [&](std::size_t block, std::size_t offset, std::size_t size) {
      block += at / kInt4Block;
      Variant::decode(steps[block], codes.data() + block * kInt4Bytes, to + offset, size);
    });
  });
}

template <class Variant>
void decode_add_all(std::span<const float> steps, std::span<const std::uint8_t> codes,
                    std::span<float> dst) noexcept {
  each_block(dst.size(), [&](std::size_t block, std::size_t at, std::size_t size) {
    Variant::decode_add(steps[block], codes.data() + block * kInt4Bytes, dst.data() + at,
                        size);
  });
}

template <class Variant>
constexpr Int4Kernels kInt4Kernels{encode_all<Variant>, decode_all<Variant>,
                                   decode_add_all<Variant>};

}  // namespace

const Int4Kernels& int4_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kInt4Kernels<Int4Avx512>;
  if (isa == Isa::avx2) return kInt4Kernels<Int4Avx2>;
  return kInt4Kernels<Int4Portable>;
}

}  // namespace brigade::kernels
