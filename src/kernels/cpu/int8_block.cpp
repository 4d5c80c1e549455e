#include "kernels/int8_block.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

static_assert(kInt8Block == kTile);

template <bool kResidual>
BRIGADE_BODY float encode_body(const float* __restrict src, float factor,
                               float* __restrict residual, std::size_t size,
                               std::int8_t* __restrict codes) {
  // As integers, magnitudes are ordered like floats, and NaN and Inf are the largest.
  std::int32_t top = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t magnitude =
        bits_of(value_at<kResidual>(src, factor, residual, i)) & 0x7fffffff;
    top = magnitude > top ? magnitude : top;
  }
  if (top >= kInfBits || top == 0) {
    std::memset(codes, 0, size);
    if (top != 0) return std::numeric_limits<float>::quiet_NaN();
    if constexpr (kResidual) std::memset(residual, 0, size * sizeof(float));
    return 0.0f;
  }
  const float scale = step_of(std::min(float_of(top), kLargest), 127.0);
  for (std::size_t i = 0; i < size; ++i) {
    const float p = value_at<kResidual>(src, factor, residual, i);
    const float rounded = round_within<-127, 127>(p / scale);
    codes[i] = static_cast<std::int8_t>(bits_of(rounded));
    if constexpr (kResidual) residual[i] = p - (rounded - kRounder) * scale;
  }
  return scale;
}

// Not restrict: `next` may be `last`.
BRIGADE_BODY float encode_share_body(const float* __restrict src, float factor,
                                     Int8Feedback feedback, std::size_t size,
                                     std::int8_t* __restrict codes) {
  const float *last = feedback.last, share = feedback.share, inverse = 1 / share;
  float* next = feedback.next;
  std::int32_t top = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t magnitude = bits_of(src[i] * factor + last[i] * share) & 0x7fffffff;
    top = magnitude > top ? magnitude : top;
  }
  if (top >= kInfBits || top == 0) {
    std::memset(codes, 0, size);
    if (top == 0) {
      std::memset(next, 0, size * sizeof(float));
      return 0.0f;
    }
    for (std::size_t i = 0; i < size; ++i) next[i] = (last[i] * share) * inverse;
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = step_of(std::min(float_of(top), kLargest), 127.0);
  BRIGADE_INDEPENDENT
  for (std::size_t i = 0; i < size; ++i) {
    const float p = src[i] * factor + last[i] * share;
    const float rounded = round_within<-127, 127>(p / scale);
    codes[i] = static_cast<std::int8_t>(bits_of(rounded));
    next[i] = (p - (rounded - kRounder) * scale) * inverse;
  }
  return scale;
}

template <bool kAdd>
BRIGADE_BODY void decode_body(float scale, const std::int8_t* __restrict codes,
                              float* __restrict dst, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const float decoded = static_cast<float>(codes[i]) * scale;
    dst[i] = kAdd ? dst[i] + decoded : decoded;
  }
}

// The bodies, compiled for one instruction set.
#define BRIGADE_INT8_VARIANT(Name, Target)                                               \
  struct Name {                                                                          \
    Target static float encode(const float* src, float factor, std::size_t size,         \
                               std::int8_t* codes) noexcept {                            \
      if (size == kTile) return encode_body<false>(src, factor, nullptr, kTile, codes);  \
      return encode_body<false>(src, factor, nullptr, size, codes);                      \
    }                                                                                    \
    Target static float encode_residual(const float* src, float factor, float* residual, \
                                        std::size_t size, std::int8_t* codes) noexcept { \
      if (size == kTile) return encode_body<true>(src, factor, residual, kTile, codes);  \
      return encode_body<true>(src, factor, residual, size, codes);                      \
    }                                                                                    \
    Target static float encode_share(const float* src, float factor,                     \
                                     Int8Feedback feedback, std::size_t size,            \
                                     std::int8_t* codes) noexcept {                      \
      if (size == kTile) return encode_share_body(src, factor, feedback, kTile, codes);  \
      return encode_share_body(src, factor, feedback, size, codes);                      \
    }                                                                                    \
    Target static void decode(float scale, const std::int8_t* codes, float* dst,         \
                              std::size_t size) noexcept {                               \
      if (size == kTile) return decode_body<false>(scale, codes, dst, kTile);            \
      decode_body<false>(scale, codes, dst, size);                                       \
    }                                                                                    \
    Target static void decode_add(float scale, const std::int8_t* codes, float* dst,     \
                                  std::size_t size) noexcept {                           \
      if (size == kTile) return decode_body<true>(scale, codes, dst, kTile);             \
      decode_body<true>(scale, codes, dst, size);                                        \
    }                                                                                    \
  }
BRIGADE_INT8_VARIANT(Portable, );
BRIGADE_INT8_VARIANT(Avx2, BRIGADE_AVX2);
BRIGADE_INT8_VARIANT(Avx512, BRIGADE_AVX512);
#undef BRIGADE_INT8_VARIANT

template <class Variant>
void encode(std::span<const float> src, float factor, std::span<float> residual,
            std::span<float> scales, std::span<std::int8_t> codes) noexcept {
  for (std::size_t at = 0, block = 0; at < src.size(); at += kTile, ++block) {
    const std::size_t size = std::min(kTile, src.size() - at);
    scales[block] =
        residual.empty()
            ? Variant::encode(src.data() + at, factor, size, codes.data() + at)
            : Variant::encode_residual(src.data() + at, factor, residual.data() + at, size,
                                       codes.data() + at);
  }
}

template <class Variant>
void encode_share(std::span<const float> src, float factor, Int8Feedback feedback,
                  std::span<float> scales, std::span<std::int8_t> codes) noexcept {
  for (std::size_t at = 0, block = 0; at < src.size(); at += kTile, ++block) {
    const Int8Feedback part{feedback.last + at, feedback.next + at, feedback.share};
    scales[block] = Variant::encode_share(
        src.data() + at, factor, part, std::min(kTile, src.size() - at), codes.data() + at);
  }
}

template <class Variant>
void decode(std::span<const float> scales, std::span<const std::int8_t> codes,
            std::span<float> dst) noexcept {
  write_tiles(dst.data(), dst.size(), [&](float* to, std::size_t at, std::size_t size) {
    Variant::decode(scales[at / kTile], codes.data() + at, to, size);
  });
}

template <class Variant>
void decode_add(std::span<const float> scales, std::span<const std::int8_t> codes,
                std::span<float> dst) noexcept {
  for (std::size_t at = 0; at < dst.size(); at += kTile) {
    Variant::decode_add(scales[at / kTile], codes.data() + at, dst.data() + at,
                        std::min(kTile, dst.size() - at));
  }
}

template <class Variant>
constexpr Int8Kernels kKernels{encode<Variant>, encode_share<Variant>, decode<Variant>,
                               decode_add<Variant>};

}  // namespace

const Int8Kernels& int8_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Avx512>;
  if (isa == Isa::avx2) return kKernels<Avx2>;
  return kKernels<Portable>;
}

}  // namespace brigade::kernels
