// int4_block.h: a warp takes four blocks, at once if possible, else one after the other.
#pragma once
#include "kernels/cuda/int4_four.cuh"
#include "kernels/cuda/int4_one.cuh"

namespace brigade::kernels::cuda {

// Calls body(place) for the warp's blocks.
template <class Body>
__device__ inline void one_by_one(const FourPosition& four, std::size_t size, Body body) {
#pragma unroll 1
  for (int i = 0; i < kFour; ++i) {
    const Int4Position place(size, four.block * kFour + i);
    if (place.count <= 0) break;
    body(place);
  }
}

// p = src * factor + residual
template <bool kResidual>
__device__ inline bool encode_at_once(const FourPosition& place, const float* src,
                                      float factor, float* residual, float* steps,
                                      unsigned* codes) {
  float p[kFourPer], lost[kFourPer];
  load_row(place, src, p);
  if constexpr (kResidual) load_row(place, residual, lost);
#pragma unroll
  for (int i = 0; i < kFourPer; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  if (!encode_four<kResidual>(place, p, steps, codes)) return false;
  if constexpr (kResidual) store_row(place, p, residual);
  return true;
}

template <bool kResidual>
__global__ void __launch_bounds__(kThreads)
    int4_encode_pass(const float* __restrict__ src, float factor,
                     float* __restrict__ residual, float* __restrict__ steps,
                     unsigned* __restrict__ codes, std::size_t size, bool aligned) {
  const FourPosition four(size);
  if (in_words(four, aligned) &&
      encode_at_once<kResidual>(four, src, factor, residual, steps, codes))
    return;
  one_by_one(four, size, [&](const Int4Position& place) {
    encode_one<kResidual>(place, src, factor, residual, steps, codes);
  });
}

template <bool kAdd>
__device__ inline void decode_at_once(const FourPosition& place, const float* steps,
                                      const unsigned* codes, float* dst) {
  float out[kFourPer], decoded[kFourPer];
  const CodeWords words = load_codes(place, codes);
  const float step = steps[place.block * kFour + place.lane % 4];
  if constexpr (kAdd) load_row(place, dst, out);
  decode_row(place.lane, words, step, decoded);
#pragma unroll
  for (int i = 0; i < kFourPer; ++i)
    out[i] = kAdd ? __fadd_rn(out[i], decoded[i]) : decoded[i];
  store_row(place, out, dst);
}

template <bool kAdd>
__global__ void __launch_bounds__(kThreads)
    int4_decode_pass(const float* __restrict__ steps, const unsigned* __restrict__ codes,
                     float* __restrict__ dst, std::size_t size, bool aligned) {
  const FourPosition four(size);
  if (in_words(four, aligned)) return decode_at_once<kAdd>(four, steps, codes, dst);
  one_by_one(four, size, [&](const Int4Position& place) {
    decode_one<kAdd>(place, steps, codes, dst);
  });
}

// sum += the messages' values, in order. Codes of several messages are loaded before any is
// added.
__device__ inline void add_messages(const FourPosition& place, const Messages& messages,
                                    float (&sum)[kFourPer]) {
  constexpr int kAtOnce = 3;
  const std::uint8_t* message = messages.first;
  for (int first = 0; first < messages.count; first += kAtOnce) {
    CodeWords codes[kAtOnce];
    float steps[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      codes[k] =
          load_codes(place, reinterpret_cast<const unsigned*>(message + messages.codes_at));
      steps[k] =
          reinterpret_cast<const float*>(message)[place.block * kFour + place.lane % 4];
      message += messages.stride;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      float decoded[kFourPer];
      decode_row(place.lane, codes[k], steps[k], decoded);
#pragma unroll
      for (int i = 0; i < kFourPer; ++i) sum[i] = __fadd_rn(sum[i], decoded[i]);
    }
  }
}

template <bool kResidual>
__device__ inline bool reduce_at_once(const FourPosition& place, const Messages& messages,
                                      const OwnerStep& reduction) {
  float p[kFourPer], lost[kFourPer];
  load_row(place, reduction.own, p);
  if constexpr (kResidual) load_row(place, reduction.residual, lost);
  add_messages(place, messages, p);
  if constexpr (kResidual) divide_by_ranks(lost, reduction.divisor);
  const auto divisor = static_cast<float>(reduction.divisor);
  const float factor = reciprocal_of(reduction.divisor);
#pragma unroll
  for (int i = 0; i < kFourPer; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  if (!encode_four<kResidual>(place, p, static_cast<float*>(reduction.headers),
                              static_cast<unsigned*>(reduction.codes)))
    return false;
  if constexpr (kResidual) {
#pragma unroll
    for (int i = 0; i < kFourPer; ++i) p[i] = __fmul_rn(p[i], divisor);
    store_row(place, p, reduction.residual);
  }
  return true;
}

template <bool kResidual>
__global__ void __launch_bounds__(kReduceThreads, reduce_blocks_at_once(kFourValues, false))
    int4_reduce_pass(Messages messages, OwnerStep reduction, bool aligned) {
  const FourPosition four(reduction.size);
  if (in_words(four, aligned) && reduce_at_once<kResidual>(four, messages, reduction))
    return;
  one_by_one(four, reduction.size, [&](const Int4Position& place) {
    reduce_one<kResidual>(place, messages, reduction);
  });
}

// ---- launchers --------------------------------------------------------------------------

inline int int4_encode(const float* src, float factor, float* residual, float* steps,
                       std::uint8_t* codes, std::size_t size, void* stream) {
  const bool aligned = aligned_to(16, src) && aligned_to(16, residual);
  return launch(residual ? int4_encode_pass<true> : int4_encode_pass<false>, size,
                kFourValues, stream, src, factor, residual, steps,
                reinterpret_cast<unsigned*>(codes), size, aligned);
}

inline int int4_decode(const float* steps, const std::uint8_t* codes, float* dst,
                       std::size_t size, bool add, void* stream) {
  return launch(add ? int4_decode_pass<true> : int4_decode_pass<false>, size, kFourValues,
                stream, steps, reinterpret_cast<const unsigned*>(codes), dst, size,
                aligned_to(16, dst));
}

inline int reduce_int4(Messages messages, OwnerStep reduction, void* stream) {
  const bool aligned = aligned_to(16, reduction.own) && aligned_to(16, reduction.residual);
  return launch<kReduceThreads>(
      reduction.residual ? int4_reduce_pass<true> : int4_reduce_pass<false>, reduction.size,
      kFourValues, stream, messages, reduction, aligned);
}

}  // namespace brigade::kernels::cuda
