// int4_block.h, block by block: a warp holds one, four values a lane. The values of a group
// have the same index in all lanes, so a rotation is five exchanges between lanes. This
// works for every block; int4_four.cuh is faster for most of them.
#pragma once
#include "kernels/cuda/passes.cuh"

namespace brigade::kernels::cuda {

constexpr int kInt4Values = 128, kInt4Per = kInt4Values / kLanes;
constexpr int kInt4Words = kInt4Values / 8;  // words of codes a block
constexpr float kLargestRotated = 1e37f;

using Int4Position = ThreadPosition<kInt4Values>;

__device__ inline void rotate(int lane, float (&y)[kInt4Per]) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
#pragma unroll
    for (int i = 0; i < kInt4Per; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, y[i], mask);
      y[i] = lane & mask ? __fsub_rn(other, y[i]) : __fadd_rn(y[i], other);
    }
  }
}

// D's sign: a lane holds one index of all four groups.
__device__ inline float sign_of(int lane) {
  return __popc(lane & (lane >> 1) & 5) & 1 ? -1.0f : 1.0f;
}

__device__ inline unsigned top_of(const float (&values)[kInt4Per]) {
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i)
    top = max(top, static_cast<unsigned>(__float_as_int(values[i]) & 0x7fffffff));
  return __reduce_max_sync(kAllLanes, top);
}

// The whole warp calls it. Makes the codes of p and, with kResidual, their error, unless p
// is not finite. Returns the step.
template <bool kResidual>
__device__ inline float encode_int4(const Int4Position& place, const float (&p)[kInt4Per],
                                    unsigned* codes, float (&lost)[kInt4Per]) {
  const unsigned top = top_of(p);
  const float sign = sign_of(place.lane);
  float y[kInt4Per];
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i)
    y[i] = sign * fminf(fmaxf(p[i], -kLargestRotated), kLargestRotated);
  rotate(place.lane, y);
  const unsigned rotated_top = top_of(y);
  const bool finite = top < kInfBits;
  const float step = finite ? step_of<7 * 32>(__int_as_float(rotated_top)) : quiet_nan();
  const Divisor scale(__fmul_rn(step, 32.0f));
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i) {
    const float rounded =
        step > 0.0f ? round_within<-7, 7>(scale.divide<false>(y[i])) : kRounder;
    word |= (static_cast<unsigned>(__float_as_int(rounded)) & 15u) << (8 * i);
    y[i] = __fsub_rn(rounded, kRounder);
  }
  const unsigned upper = __shfl_down_sync(kAllLanes, word, kInt4Words);
  if (place.lane < kInt4Words)
    codes[place.block * kInt4Words + place.lane] = word | upper << 4;
  if constexpr (kResidual) {
    rotate(place.lane, y);
#pragma unroll
    for (int i = 0; i < kInt4Per; ++i)
      if (finite)
        lost[i] = step > 0.0f ? __fsub_rn(p[i], __fmul_rn(y[i], sign * step)) : p[i];
  }
  return step;
}

__device__ inline void decode_int4(const Int4Position& place, const float* steps,
                                   const unsigned* codes, float (&out)[kInt4Per]) {
  unsigned word = codes[place.block * kInt4Words + place.lane % kInt4Words];
  if (place.lane >= kInt4Words) word >>= 4;
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i) {
    const int nibble = static_cast<int>(word >> (8 * i)) & 15;
    out[i] = static_cast<float>(nibble > 7 ? nibble - 16 : nibble);
  }
  rotate(place.lane, out);
  const float step = sign_of(place.lane) * steps[place.block];
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i) out[i] = __fmul_rn(out[i], step);
}

// p = src * factor + residual
template <bool kResidual>
__device__ inline void encode_one(const Int4Position& place, const float* src, float factor,
                                  float* residual, float* steps, unsigned* codes) {
  float p[kInt4Per], lost[kInt4Per];
  load<false>(place, src, p);
  if constexpr (kResidual) load<false>(place, residual, lost);
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  const float step = encode_int4<kResidual>(place, p, codes, lost);
  if (place.lane == 0) steps[place.block] = step;
  if constexpr (kResidual) store<false>(place, lost, residual);
}

template <bool kAdd>
__device__ inline void decode_one(const Int4Position& place, const float* steps,
                                  const unsigned* codes, float* dst) {
  float decoded[kInt4Per], out[kInt4Per];
  if constexpr (kAdd) load<false>(place, dst, out);
  decode_int4(place, steps, codes, decoded);
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i)
    out[i] = kAdd ? __fadd_rn(out[i], decoded[i]) : decoded[i];
  store<false>(place, out, dst);
}

template <bool kResidual>
__device__ inline void reduce_one(const Int4Position& place, const Messages& messages,
                                  const OwnerStep& reduction) {
  float p[kInt4Per], lost[kInt4Per];
  load<false>(place, reduction.own, p);
  if constexpr (kResidual) load<false>(place, reduction.residual, lost);
  for (int rank = 0; rank < messages.count; ++rank) {
    const std::uint8_t* message = messages.first + rank * messages.stride;
    float decoded[kInt4Per];
    decode_int4(place, reinterpret_cast<const float*>(message),
                reinterpret_cast<const unsigned*>(message + messages.codes_at), decoded);
#pragma unroll
    for (int i = 0; i < kInt4Per; ++i)
      p[i] = place.has(i) ? __fadd_rn(p[i], decoded[i]) : 0.0f;
  }
  const auto divisor = static_cast<float>(reduction.divisor);
  const float factor = reciprocal_of(reduction.divisor);
#pragma unroll
  for (int i = 0; i < kInt4Per; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) {
      lost[i] = __fdiv_rn(lost[i], divisor);
      p[i] = __fadd_rn(p[i], lost[i]);
    }
  }
  const float step =
      encode_int4<kResidual>(place, p, static_cast<unsigned*>(reduction.codes), lost);
  if (place.lane == 0) static_cast<float*>(reduction.headers)[place.block] = step;
  if constexpr (kResidual) {
#pragma unroll
    for (int i = 0; i < kInt4Per; ++i) lost[i] = __fmul_rn(lost[i], divisor);
    store<false>(place, lost, reduction.residual);
  }
}

}  // namespace brigade::kernels::cuda
