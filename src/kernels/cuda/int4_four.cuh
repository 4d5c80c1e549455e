// int4_block.h, four whole blocks at once, 16 values a lane: two of a rotation's five
// stages stay within a lane. Tensor cores rotate the codes, exactly, because these are
// whole numbers.
//
// Lane l has row l / 4 of block l % 4. A *row* is the values of k = row, row + 8, row + 16
// and row + 24, of all four groups: k is a value's index in its group. A lane's value i, of
// 16, is in group i % 4 and at k = row + 8 (i / 4).
#pragma once
#include "kernels/cuda/passes.cuh"

namespace brigade::kernels::cuda {

constexpr int kFour = 4, kFourValues = 128 * kFour, kFourPer = kFourValues / kLanes;
constexpr int kCodeWords = 128 / 8;  // words of codes a block

using FourPosition = ThreadPosition<kFourValues>;

// The address of the lane's row in values that begin at `from`.
template <class Float>
__device__ inline Float* row_of(const FourPosition& place, Float* from) {
  return from + place.at + place.lane % 4 * 128 + place.lane / 4 * 4;
}

__device__ inline void load_row(const FourPosition& place, const float* from,
                                float (&to)[kFourPer]) {
  const float* row = row_of(place, from);
#pragma unroll
  for (int i = 0; i < kFourPer; i += 4) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(row + 8 * i));
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}

__device__ inline void store_row(const FourPosition& place, const float (&from)[kFourPer],
                                 float* to) {
  float* row = row_of(place, to);
#pragma unroll
  for (int i = 0; i < kFourPer; i += 4) {
    __stcs(reinterpret_cast<float4*>(row + 8 * i),
           make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]));
  }
}

// -1 if the bit is set, else 1.
__device__ inline float minus_if(int bit) { return bit & 1 ? -1.0f : 1.0f; }

// D's signs in a row: `even` at k = row and row + 16, `odd` at the others.
struct RowSigns {
  float even, odd;
  __device__ explicit RowSigns(int row)
      : even(minus_if(row & row >> 1)), odd(minus_if((row & row >> 1) ^ row >> 2)) {}
  __device__ float of(int i) const { return i / 4 % 2 == 0 ? even : odd; }
};

// p becomes H D p, up to the returned sign: H D p is the sign times p. So the signs of D
// and of differences cost nothing: each stage is one fused product with 1 or -1, which is
// exact. The sign of a zero may differ, but no code depends on it.
__device__ inline float rotate_row(int lane, float (&p)[kFourPer]) {
  const int row = lane / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = p[i], b = p[i + 8];
    p[i] = __fadd_rn(a, b), p[i + 8] = __fsub_rn(a, b);
  }
  const float upper = minus_if(row >> 2), lower = minus_if(row ^ row >> 1);
#pragma unroll
  for (int i = 0; i < kFourPer; i += i % 8 == 3 ? 5 : 1) {
    const float a = p[i], b = p[i + 4];
    p[i] = __fmaf_rn(b, upper, a), p[i + 4] = __fmaf_rn(b, -upper, a);
  }
#pragma unroll
  for (int mask = 16; mask >= 4; mask /= 2) {
    const float factor = mask == 16 ? upper : lower;
#pragma unroll
    for (int i = 0; i < kFourPer; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, p[i], mask);
      p[i] = __fmaf_rn(other, factor, p[i]);
    }
  }
  return minus_if((row & row >> 1) ^ row ^ row >> 1 ^ row >> 2);
}

// The largest magnitude of the lane's block, NaN if there is one.
__device__ inline float top_of_block(const float (&values)[kFourPer]) {
  float top = 0.0f;
  const auto add = [&](float value) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(top) : "f"(fabsf(value)));
  };
#pragma unroll
  for (int i = 0; i < kFourPer; ++i) add(values[i]);
#pragma unroll
  for (int mask = 16; mask >= 4; mask /= 2) add(__shfl_xor_sync(kAllLanes, top, mask));
  return top;
}

// Four words of codes of block l / 8: the words l % 4, l % 4 + 4, + 8, and + 12.
struct CodeWords {
  unsigned words[4];
};

__device__ inline CodeWords load_codes(const FourPosition& place, const unsigned* codes) {
  const unsigned* first = codes + place.block * (kFour * kCodeWords) +
                          place.lane / 8 * kCodeWords + place.lane % 4;
  return {{__ldcs(first), __ldcs(first + 4), __ldcs(first + 8), __ldcs(first + 12)}};
}

// The same, from lanes that hold the words `row` and row + 8 of their block.
__device__ inline CodeWords gather_codes(int lane, const unsigned (&mine)[2]) {
  CodeWords codes;
#pragma unroll
  for (int t = 0; t < 4; ++t)
    codes.words[t] =
        __shfl_sync(kAllLanes, mine[t / 2], 4 * (lane % 4 + 4 * (t % 2)) + lane / 8);
  return codes;
}

// a b + c, with 16 x 32 and 32 x 8 signed bytes.
__device__ inline void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1,
                                    const int (&c)[4], int (&d)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}

// H's rows 16 `half` to 16 `half` + 15, as bytes.
__device__ inline void rows_of_h(int lane, int half, unsigned (&a)[4]) {
  constexpr unsigned kNegate = 0xfefefefeu;  // exclusive or turns 1 into -1
  const int row = lane / 4;
  a[0] = row & 4 ? 0xff01ff01u : 0x01010101u;
  if (__popc(row & lane & 3) & 1) a[0] ^= kNegate;
  a[1] = a[0] ^ (kNegate & 0xffff0000u);
  a[2] = half == 0 ? a[0] : a[0] ^ kNegate;
  a[3] = half == 0 ? a[1] : a[1] ^ kNegate;
}

// y = H code, whole numbers. A column of b is a group: columns 2 n and 2 n + 1 are groups
// of block n. The inputs are codes + 8; H moves all these 8s to k = 0, where they are
// subtracted. The outputs are the bits of kRounder + y.
__device__ inline void rotate_codes(int lane, const CodeWords& codes,
                                    float (&y)[kFourPer]) {
  constexpr int kZero = 0x4b400000;  // kRounder's bits
  const int row = lane / 4;
  // Bytes of group row % 2 from two words, and of group row % 2 + 2.
  const unsigned pick = 0x6240u + 0x1111u * (row % 2);
  const unsigned low = __byte_perm(codes.words[0], codes.words[1], pick);
  const unsigned high = __byte_perm(codes.words[2], codes.words[3], pick);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = half == 0 && row == 0 ? kZero - 8 * 32 : kZero;
    const int c[4] = {first, first, kZero, kZero};
    unsigned a[4];
    rows_of_h(lane, half, a);
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const unsigned both =
          __byte_perm(low, high, set == 0 ? 0x5410 : 0x7632) ^ 0x88888888u;
      int d[4];
      multiply_add(a, both & 0x0f0f0f0fu, both >> 4 & 0x0f0f0f0fu, c, d);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y[8 * half + 4 * (i / 2) + 2 * set + i % 2] =
            __fsub_rn(__int_as_float(d[i]), kRounder);
    }
  }
}

// Decodes codes with the step `step` to values.
__device__ inline void decode_row(int lane, const CodeWords& codes, float step,
                                  float (&out)[kFourPer]) {
  rotate_codes(lane, codes, out);
  const RowSigns signs(lane / 4);
  const float even = __fmul_rn(signs.even, step), odd = __fmul_rn(signs.odd, step);
#pragma unroll
  for (int i = 0; i < kFourPer; ++i)
    out[i] = __fmul_rn(out[i], i / 4 % 2 == 0 ? even : odd);
}

// Codes of `sign` times y, for the words `row` and row + 8.
__device__ inline void words_of(const float (&y)[kFourPer], float sign,
                                const Divisor& scale, unsigned (&words)[2]) {
  // The code + 8 is an unsigned nibble, so two of them sum to a byte.
  const auto nibble = [&](int i) {
    return __float_as_uint(__fmaf_rn(scale.divide<true>(y[i]), sign, kRounder + 8.0f));
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned bytes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      bytes[j] = nibble(4 * half + j) + (nibble(8 + 4 * half + j) << 4);
    words[half] = word_of_bytes(bytes[0], bytes[1], bytes[2], bytes[3]) ^ 0x88888888u;
  }
}

// The whole warp calls it. Writes the codes and steps of p; with kResidual, p becomes their
// error. If a block is not finite, or too large or too small for the quick division, writes
// nothing and returns false.
template <bool kResidual>
__device__ inline bool encode_four(const FourPosition& place, float (&p)[kFourPer],
                                   float* steps, unsigned* codes) {
  float y[kFourPer];
#pragma unroll
  for (int i = 0; i < kFourPer; ++i) y[i] = p[i];
  const float sign = rotate_row(place.lane, y);
  const float top = top_of_block(y);
  // A rotation keeps the sum of squares, so without a large y there is no large p.
  const float step = step_of<7 * 32>(top < 0x1p100f ? top : 0.0f);
  const Divisor scale(__fmul_rn(step, 32.0f));
  if (!__all_sync(kAllLanes, top == 0.0f || (top < 0x1p100f && scale.is_quick())))
    return false;
  unsigned words[2];
  words_of(y, sign, scale, words);
  const int row = place.lane / 4, block = place.lane % 4;
  unsigned* to = codes + (place.block * kFour + block) * kCodeWords + row;
  to[0] = words[0], to[8] = words[1];
  if (row == 0) steps[place.block * kFour + block] = step;
  if constexpr (kResidual) {
    decode_row(place.lane, gather_codes(place.lane, words), step, y);
    // A block of zeros keeps the signs of its zeros.
#pragma unroll
    for (int i = 0; i < kFourPer; ++i) p[i] = __fsub_rn(p[i], step > 0.0f ? y[i] : 0.0f);
  }
  return true;
}

}  // namespace brigade::kernels::cuda
