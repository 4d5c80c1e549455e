// A warp holds one block of values in its registers: lane l has four values in a row at 4
// l, 4 l + 128, 4 l + 256 and so on, which it loads and stores 16 bytes at a time if memory
// is aligned to that, and one by one otherwise and in the last, short block.
//
// Nothing here may be fused or contracted: --fmad=false, and no fast math.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace brigade::kernels::cuda {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kThreads = 256;
// Kernels that sum messages have small thread blocks, because a block makes room for
// another only when its slowest warp is done.
constexpr int kReduceThreads = 64;
// The number of warps of a kernel that sums messages that should fit a multiprocessor:
// fewer have too few loads under way, more have too few registers. A warp holds `values`
// values. Each number was the fastest of several on an H200.
constexpr int warps_at_once(int values, bool residual) {
  return values <= 256 ? 40 : residual ? 24 : 28;
}
constexpr int kRow = 4 * kLanes;  // values that a warp loads at once

// As in cpu/kernel_body.h.
constexpr float kLargest = 3.3e38f;
constexpr float kRounder = 12582912.0f;
constexpr std::int32_t kInfBits = 0x7f800000;

__device__ inline float quiet_nan() { return __int_as_float(0x7fc00000); }

// The smallest float >= range / kLevels, as on the CPU, without a division: the result is
// the float nearest to the product with the reciprocal, or the next one, and a float times
// kLevels is exact.
template <int kLevels>
__device__ inline float step_of(double range) {
  static_assert(kLevels < 256);
  const float nearest = __double2float_rn(range * (1.0 / kLevels));
  return static_cast<double>(nearest) * kLevels < range
             ? __int_as_float(__float_as_int(nearest) + 1)
             : nearest;
}

// t, rounded and clamped to two whole numbers, plus kRounder.
template <int kLeast, int kMost>
__device__ inline float round_within(float t) {
  constexpr std::int32_t zero = 0x4b400000;  // kRounder's bits
  const std::int32_t bits = __float_as_int(__fadd_rn(t, kRounder));
  return __int_as_float(max(min(bits, zero + kMost), zero + kLeast));
}

// Divides many values by one, rounded as a division. With the rounded reciprocal, two
// corrections are enough (Markstein 1990) if no step underflows: then a quotient costs five
// instructions.
struct Divisor {
  float by, reciprocal;

  __device__ explicit Divisor(float by) : by(by) {
    reciprocal = by >= 0x1p-90f && by <= 0x1p100f ? __frcp_rn(by) : 0.0f;
  }
  // Whether divide<true>(), which has only those corrections, may be used.
  __device__ bool is_quick() const { return reciprocal != 0.0f; }
  template <bool kQuick>
  __device__ float divide(float x) const {
    if (!kQuick && !is_quick()) return __fdiv_rn(x, by);
    float quotient = __fmul_rn(x, reciprocal);
    quotient = __fmaf_rn(__fmaf_rn(-by, quotient, x), reciprocal, quotient);
    return __fmaf_rn(__fmaf_rn(-by, quotient, x), reciprocal, quotient);
  }
};

// The number of this warp in the grid.
__device__ inline std::size_t warp_of_grid() {
  return std::size_t{blockIdx.x} * (blockDim.x / kLanes) + threadIdx.x / kLanes;
}

// The warp's position: its block, and that block's number of values.
template <int kValues>
struct ThreadPosition {
  int lane;
  std::size_t block, at;
  int count;  // <= kValues; <= 0: nothing to do

  __device__ explicit ThreadPosition(std::size_t size, std::size_t block = warp_of_grid())
      : block(block) {
    lane = threadIdx.x % kLanes;
    at = block * kValues;
    count = at >= size ? 0 : static_cast<int>(min(size - at, std::size_t{kValues}));
  }
  __device__ bool full() const { return count == kValues; }
  // The index in the block of the lane's i-th value.
  __device__ int index(int i) const { return i / 4 * kRow + lane * 4 + i % 4; }
  __device__ bool has(int i) const { return index(i) < count; }
};

// With kFull, the block has all its values, and memory is aligned to whole loads.

// Whether memory will be read again soon (kKeep) or not (kStream).
enum Reading { kStream, kKeep };

// Reads a lane's values; missing ones become 0.
template <bool kFull, Reading kReading = kStream, int kValues, int kPer = kValues / kLanes>
__device__ inline void load(const ThreadPosition<kValues>& place, const float* from,
                            float (&to)[kPer]) {
  if constexpr (kFull) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      const auto* address =
          reinterpret_cast<const float4*>(from + place.at + place.index(i));
      const float4 four = kReading == kStream ? __ldcs(address) : *address;
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      to[i] = place.has(i) ? from[place.at + place.index(i)] : 0.0f;
  }
}

template <bool kFull, Reading kReading = kStream, int kValues, int kPer = kValues / kLanes>
__device__ inline void store(const ThreadPosition<kValues>& place,
                             const float (&from)[kPer], float* to) {
  if constexpr (kFull) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      auto* address = reinterpret_cast<float4*>(to + place.at + place.index(i));
      const float4 four = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
      if constexpr (kReading == kStream)
        __stcs(address, four);
      else
        *address = four;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (place.has(i)) to[place.at + place.index(i)] = from[i];
  }
}

// Codes of one or two bytes, handled four at once: Four is a word of four codes.
template <class Code>
struct FourCodes;
template <>
struct FourCodes<std::uint8_t> {
  using Word = unsigned;
};
template <>
struct FourCodes<std::uint16_t> {
  using Word = unsigned long long;
};

template <class Code>
using FourWord = typename FourCodes<Code>::Word;

// A word of the low byte, or the low two bytes, of each of the four.
__device__ inline unsigned word_of_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
__device__ inline unsigned long long word_of_pairs(unsigned a, unsigned b, unsigned c,
                                                   unsigned d) {
  return static_cast<unsigned long long>(__byte_perm(c, d, 0x5410)) << 32 |
         __byte_perm(a, b, 0x5410);
}

// 2^23 plus the word's j-th byte.
__device__ inline float byte_above_2p23(unsigned word, int j) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + j));
}

// The i-th of a lane's codes.
template <class Code, int kWords>
__device__ inline Code code_in(const FourWord<Code> (&words)[kWords], int i) {
  return static_cast<Code>(words[i / 4] >> (8 * sizeof(Code) * (i % 4)));
}

// Reads a lane's codes, four in a word; missing ones become 0.
template <class Code, bool kFull, Reading kReading = kStream, int kValues,
          int kWords = kValues / kLanes / 4>
__device__ inline void load_words(const ThreadPosition<kValues>& place, const Code* from,
                                  FourWord<Code> (&to)[kWords]) {
  using Word = FourWord<Code>;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    if constexpr (kFull) {
      const auto* word =
          reinterpret_cast<const Word*>(from + place.at + place.index(4 * k));
      to[k] = kReading == kStream ? __ldcs(word) : *word;
    } else {
      to[k] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (place.has(4 * k + j))
          to[k] |= static_cast<Word>(from[place.at + place.index(4 * k + j)])
                   << (8 * sizeof(Code) * j);
      }
    }
  }
}

template <class Code, bool kFull, int kValues, int kWords = kValues / kLanes / 4>
__device__ inline void store_words(const ThreadPosition<kValues>& place,
                                   const FourWord<Code> (&from)[kWords], Code* to) {
  using Word = FourWord<Code>;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    Code* four = to + place.at + place.index(4 * k);
    if constexpr (kFull) {
      __stcs(reinterpret_cast<Word*>(four), from[k]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (place.has(4 * k + j)) four[j] = code_in<Code>(from, 4 * k + j);
    }
  }
}

// ---- launching --------------------------------------------------------------------------

inline bool aligned_to(std::size_t bytes, const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

// Launches one warp for each `values` values, as kernel<<<…>>>(arguments…).
template <int kBlockThreads = kThreads, class Kernel, class... Arguments>
int launch(Kernel kernel, std::size_t size, std::size_t values, void* stream,
           Arguments... arguments) {
  if (size == 0) return 0;
  const std::size_t warps = (size + values - 1) / values;
  constexpr std::size_t block_warps = kBlockThreads / kLanes;
  const std::size_t blocks = (warps + block_warps - 1) / block_warps;
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace brigade::kernels::cuda
