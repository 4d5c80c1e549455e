// A format is a codec's work on the values of one block, which a warp holds. It has
//   kValues           values a block
//   kFeedback         whether it takes a residual; if not, what concerns it is not there
//   Code, Header      what a message holds of a value, and of a block
//   Grid              a header, made ready for coding
//   header_of<kFull>(place, p)    by the whole warp; kFull: no value is missing
//   scaled(x, factor)         their product
//   is_quick(grid)            whether word_of<true> and residual_of<true> may be used,
//                             which leave out what few blocks need; asked once a block
//   word_of(p, k, grid)       the k-th four of a lane's values to their codes
//   values_of(words, header, out)     a lane's codes back to values
//   residual_of(p, value, grid)       what the encoding of p lost
//   keeps_residual(header)    the block can't be encoded: its residual stays as it was
#pragma once
#include <cmath>

#include "kernels/affine_u8.h"
#include "kernels/cuda/warp_block.cuh"

namespace brigade::kernels::cuda {

struct Int8Format {
  static constexpr int kValues = 256;
  static constexpr bool kFeedback = true;
  static constexpr int kPer = kValues / kLanes;
  using Code = std::uint8_t;  // an int8's bits
  using Header = float;
  using Grid = Divisor;

  template <bool kFull>
  __device__ static Header header_of(const ThreadPosition<kValues>&,
                                     const float (&p)[kPer]) {
    unsigned top = 0;  // missing values are 0
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      top = max(top, static_cast<unsigned>(__float_as_int(p[i]) & 0x7fffffff));
    top = __reduce_max_sync(kAllLanes, top);
    if (top >= kInfBits) return quiet_nan();
    if (top == 0) return 0.0f;
    return step_of<127>(fminf(__int_as_float(top), kLargest));
  }
  __device__ static Grid grid_of(Header header) { return Divisor(header); }
  // A NaN in it makes the header NaN, and then the values are not used.
  __device__ static float scaled(float x, float factor) { return __fmul_rn(x, factor); }
  __device__ static bool is_quick(const Grid& scale) { return scale.is_quick(); }
  // A quick block has no quotient beyond 127, because the scale was rounded up.
  template <bool kQuick>
  __device__ static unsigned code_of(float p, const Grid& scale) {
    if (kQuick) return __float_as_uint(__fadd_rn(scale.divide<true>(p), kRounder));
    if (!(scale.by > 0.0f)) return 0;
    return __float_as_uint(round_within<-127, 127>(scale.divide<false>(p)));
  }
  template <bool kQuick>
  __device__ static unsigned word_of(const float (&p)[kPer], int k, const Grid& scale) {
    return word_of_bytes(
        code_of<kQuick>(p[4 * k], scale), code_of<kQuick>(p[4 * k + 1], scale),
        code_of<kQuick>(p[4 * k + 2], scale), code_of<kQuick>(p[4 * k + 3], scale));
  }
  // Avoids conversions from integers, which take the time of several other instructions.
  __device__ static void values_of(const unsigned (&words)[kPer / 4], Header scale,
                                   float (&out)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float above = byte_above_2p23(words[i / 4] ^ 0x80808080u, i % 4);
      out[i] = __fmul_rn(__fsub_rn(above, 0x1p23f + 128.0f), scale);
    }
  }
  template <bool kQuick>
  __device__ static float residual_of(float p, float value, const Grid& scale) {
    return !kQuick && scale.by == 0.0f ? 0.0f : __fsub_rn(p, value);
  }
  __device__ static bool keeps_residual(Header header) { return isnan(header); }
};

// The least and the largest of some values; NaN if one is NaN. A zero loses its sign.
struct Ends {
  float least = INFINITY;
  float most = -INFINITY;

  __device__ void add(float p) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(least) : "f"(p));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(p));
  }
};

// Ends as integers in the same order; NaN is the upper end.
struct Range {
  int least = 0x7fffffff;
  int most = -0x7fffffff - 1;

  __device__ static int flip_if_negative(int bits) {
    return bits ^ ((bits >> 31) & 0x7fffffff);
  }
  __device__ static Range of(const Ends& ends) {
    return {flip_if_negative(__float_as_int(ends.least)),
            flip_if_negative(__float_as_int(ends.most))};
  }
  __device__ Range of_warp() const {
    return {__reduce_min_sync(kAllLanes, least), __reduce_max_sync(kAllLanes, most)};
  }
  __device__ AffineHeader header() const {
    const float low_end = __int_as_float(flip_if_negative(least));
    const float high_end = __int_as_float(flip_if_negative(most));
    if (!isfinite(low_end) || !isfinite(high_end)) return {quiet_nan(), quiet_nan()};
    const float low = fminf(fmaxf(low_end, -kLargest), kLargest);
    const float high = fminf(fmaxf(high_end, -kLargest), kLargest);
    if (low == high) return {0.0f, __fadd_rn(low, 0.0f)};  // never -0
    const float scale = step_of<255>(static_cast<double>(high) - static_cast<double>(low));
    if (low > 0.0f || high < 0.0f) return {scale, low};
    const float zero_code =
        static_cast<float>(rint(-static_cast<double>(low) / static_cast<double>(scale)));
    return {scale, __fsub_rn(0.0f, __fmul_rn(zero_code, scale))};
  }
};

struct AffineFormat {
  static constexpr int kValues = 512;
  static constexpr bool kFeedback = true;
  static constexpr int kPer = kValues / kLanes;
  using Code = std::uint8_t;
  using Header = AffineHeader;
  // Scale and low end times `shrink`, a power of two that keeps differences of a wide range
  // below overflow; `grow` takes it back.
  struct Grid {
    Divisor scale;
    float low, shrink, grow;
  };

  template <bool kFull>
  __device__ static Header header_of(const ThreadPosition<kValues>& place,
                                     const float (&p)[kPer]) {
    Ends ends;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (kFull || place.has(i)) ends.add(p[i]);
    return Range::of(ends).of_warp().header();
  }
  __device__ static bool is_wide(Header header) { return header.scale > 0x1p100f; }
  __device__ static Grid grid_of(Header header) {
    const bool wide = is_wide(header);
    const float shrink = wide ? 0.5f : 1.0f;
    return {Divisor(__fmul_rn(header.scale, shrink)), __fmul_rn(header.low, shrink), shrink,
            wide ? 2.0f : 1.0f};
  }
  __device__ static float scaled(float x, float factor) { return __fmul_rn(x, factor); }
  __device__ static bool is_quick(const Grid& grid) {
    return grid.scale.is_quick() && grid.shrink == 1.0f;
  }
  template <bool kQuick>
  __device__ static unsigned code_of(float p, const Grid& grid) {
    if (!kQuick && !(grid.scale.by > 0.0f)) return 0;
    const float above = __fsub_rn(kQuick ? p : __fmul_rn(p, grid.shrink), grid.low);
    return code_at(grid.scale.divide<kQuick>(above));
  }
  // Rounds to even and clamps to 0 to 255, in one instruction.
  __device__ static unsigned code_at(float t) {
    unsigned code;
    asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(code) : "f"(t));
    return code;
  }
  template <bool kQuick>
  __device__ static unsigned word_of(const float (&p)[kPer], int k, const Grid& grid) {
    return word_of_bytes(
        code_of<kQuick>(p[4 * k], grid), code_of<kQuick>(p[4 * k + 1], grid),
        code_of<kQuick>(p[4 * k + 2], grid), code_of<kQuick>(p[4 * k + 3], grid));
  }
  __device__ static void values_of(const unsigned (&words)[kPer / 4], Header header,
                                   float (&out)[kPer]) {
    if (is_wide(header)) return wide_values_of(words, grid_of(header), out);
    // (2^23 + code) * scale - 2^23 * scale, rounded once, is code * scale, rounded.
    const float below = __fmul_rn(-0x1p23f, header.scale);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float above = byte_above_2p23(words[i / 4], i % 4);
      out[i] = __fadd_rn(header.low, __fmaf_rn(above, header.scale, below));
    }
  }
  __device__ static void wide_values_of(const unsigned (&words)[kPer / 4], const Grid& grid,
                                        float (&out)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const auto code = static_cast<float>(code_in<Code>(words, i));
      const float above = __fmul_rn(code, grid.scale.by);
      out[i] = __fmul_rn(__fadd_rn(grid.low, above), grid.grow);
    }
  }
  template <bool>
  __device__ static float residual_of(float p, float value, const Grid&) {
    return __fsub_rn(p, value);
  }
  __device__ static bool keeps_residual(Header header) { return isnan(header.scale); }
};

struct NoHeader {};

// fp16 and bf16 are blocks without a header. `Cast` has code_of(p) and value_of(code).
template <class Cast>
struct HalfFormat {
  static constexpr int kValues = 256;
  static constexpr bool kFeedback = false;
  static constexpr int kPer = kValues / kLanes;
  using Code = std::uint16_t;
  using Header = NoHeader;
  using Grid = NoHeader;

  template <bool>
  __device__ static Header header_of(const ThreadPosition<kValues>&,
                                     const float (&)[kPer]) {
    return {};
  }
  __device__ static Grid grid_of(Header) { return {}; }
  // A NaN keeps its sign and payload, as it does on the CPU.
  __device__ static float scaled(float x, float factor) {
    return isnan(x) ? __int_as_float(__float_as_int(x) | 0x00400000) : __fmul_rn(x, factor);
  }
  __device__ static bool is_quick(Grid) { return true; }
  template <bool>
  __device__ static FourWord<Code> word_of(const float (&p)[kPer], int k, Grid) {
    return word_of_pairs(Cast::code_of(p[4 * k]), Cast::code_of(p[4 * k + 1]),
                         Cast::code_of(p[4 * k + 2]), Cast::code_of(p[4 * k + 3]));
  }
  __device__ static void values_of(const FourWord<Code> (&words)[kPer / 4], Header,
                                   float (&out)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) out[i] = Cast::value_of(code_in<Code>(words, i));
  }
};

struct Bf16Cast {
  __device__ static std::uint16_t code_of(float p) {
    const unsigned bits = __float_as_uint(p);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;  // quiet
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  }
  __device__ static float value_of(std::uint16_t code) {
    return __uint_as_float(static_cast<unsigned>(code) << 16);
  }
};

struct Fp16Cast {
  __device__ static std::uint16_t code_of(float p) {
    const unsigned bits = __float_as_uint(p);
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)  // the instruction drops a NaN's sign and payload
      return ((bits >> 16) & 0x8000u) | 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    std::uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(p));
    return code;
  }
  __device__ static float value_of(std::uint16_t code) {
    const unsigned magnitude = code & 0x7fffu;
    if (magnitude > 0x7c00u)
      return __uint_as_float((static_cast<unsigned>(code & 0x8000u) << 16) |
                             (magnitude << 13) | 0x7fc00000u);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
  }
};

using Bf16Format = HalfFormat<Bf16Cast>;
using Fp16Format = HalfFormat<Fp16Cast>;

}  // namespace brigade::kernels::cuda
