// Common parts of the kernels. A body is one loop, written once in plain C++ that compilers
// vectorise, and compiled for each instruction set under [[gnu::target]]. Bodies work on
// tiles: runs of at most 256 values, small enough for the first cache. The loops over tiles
// are shared. Nothing is fused or reordered (-ffp-contract=off), so all variants give the
// same bits.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BRIGADE_BODY [[gnu::always_inline]] inline

// Written before a loop: its iterations are independent, although pointers may alias.
#ifdef __clang__
#define BRIGADE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BRIGADE_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if defined(__x86_64__)
#define BRIGADE_AVX2 [[gnu::target("avx2,f16c")]]
#define BRIGADE_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]]
#else
#define BRIGADE_AVX2
#define BRIGADE_AVX512
#endif

namespace brigade::kernels {

inline constexpr std::size_t kTile = 256;
// Quantizers saturate here, so that a code times its scale never overflows.
inline constexpr float kLargest = 3.3e38f;
// Adding it to a float of magnitude below 2^22 rounds to the nearest whole number, ties to
// even, and leaves that number in the low bits.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
inline constexpr std::int32_t kInfBits = 0x7f800000;

BRIGADE_BODY std::int32_t bits_of(float x) { return std::bit_cast<std::int32_t>(x); }
BRIGADE_BODY float float_of(std::int32_t bits) { return std::bit_cast<float>(bits); }

// The smallest float >= range / levels. Rounding up keeps codes in range, also if the
// quotient is denormal and rounding to nearest would lose most of it.
BRIGADE_BODY float step_of(double range, double levels) {
  const double exact = range / levels;
  const float nearest = static_cast<float>(exact);
  return static_cast<double>(nearest) < exact ? float_of(bits_of(nearest) + 1) : nearest;
}

// t, rounded and clamped to the whole numbers kLeast to kMost, plus kRounder. The limits
// are applied to the bits, because compilers vectorise a minimum of integers everywhere,
// but one of floats only under looser rules.
template <int kLeast, int kMost>
BRIGADE_BODY float round_within(float t) {
  constexpr std::int32_t least = std::bit_cast<std::int32_t>(kRounder + kLeast);
  constexpr std::int32_t most = std::bit_cast<std::int32_t>(kRounder + kMost);
  std::int32_t bits = bits_of(t + kRounder);
  bits = bits < most ? bits : most;
  bits = bits > least ? bits : least;
  return float_of(bits);
}

// src * factor + residual, the value to encode.
template <bool kResidual>
BRIGADE_BODY float value_at(const float* src, float factor, const float* residual,
                            std::size_t i) {
  const float scaled = src[i] * factor;
  if constexpr (kResidual) return scaled + residual[i];
  return scaled;
}

// Writes floats tile by tile: fill(to, offset, count) computes `count` values. Large
// outputs bypass the caches, which saves reading each line before it is written (15 to 25 %
// on Zen 4).
template <class Fill>
BRIGADE_BODY void write_tiles(float* dst, std::size_t size, Fill fill) {
#if defined(__x86_64__)
  constexpr std::size_t kStreamFrom = std::size_t{1} << 20;  // elements
  if (size >= kStreamFrom && reinterpret_cast<std::uintptr_t>(dst) % 16 == 0) {
    alignas(64) float tile[kTile];
    const std::size_t whole = size - size % kTile;
    for (std::size_t at = 0; at < whole; at += kTile) {
      fill(tile, at, kTile);
      for (std::size_t i = 0; i < kTile; i += 4) {
        _mm_stream_ps(dst + at + i, _mm_load_ps(tile + i));
      }
    }
    _mm_sfence();
    if (whole < size) fill(dst + whole, whole, size - whole);
    return;
  }
#endif
  for (std::size_t at = 0; at < size; at += kTile) {
    fill(dst + at, at, size - at < kTile ? size - at : kTile);
  }
}

}  // namespace brigade::kernels
