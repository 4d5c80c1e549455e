// The passes over memory, for every format: encode, decode, and the owner's reduction.
#pragma once
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/formats.cuh"

namespace brigade::kernels::cuda {

template <class Header>
__device__ inline void put(Header* headers, std::size_t block, Header header) {
  headers[block] = header;
}
__device__ inline void put(NoHeader*, std::size_t, NoHeader) {}
template <class Header>
__device__ inline Header get(const Header* headers, std::size_t block) {
  return headers[block];
}
__device__ inline NoHeader get(const NoHeader*, std::size_t) { return {}; }

// p = src * factor + residual
template <class Format, bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    encode_pass(const float* __restrict__ src, float factor, float* __restrict__ residual,
                typename Format::Header* __restrict__ headers,
                typename Format::Code* __restrict__ codes, std::size_t size) {
  const Place<Format::kValues> place(size);
  if (place.count <= 0) return;
  float p[Format::kPer], lost[Format::kPer];
  load<kAligned>(place, src, p);
  if constexpr (kResidual) load<kAligned>(place, residual, lost);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = scaled(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  const auto header = Format::header_of(place, p);
  const auto grid = Format::grid_of(header);
  typename Format::Code out[Format::kPer];
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    out[i] = Format::code_of(p[i], grid);
    if constexpr (kResidual)
      lost[i] = Format::residual_of(p[i], Format::value_of(out[i], grid), grid);
  }
  if (place.lane == 0) put(headers, place.block, header);
  store<kAligned>(place, out, codes);
  if constexpr (kResidual) {
    if (!Format::keeps_residual(header)) store<kAligned>(place, lost, residual);
  }
}

template <class Format, bool kAdd, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    decode_pass(const typename Format::Header* __restrict__ headers,
                const typename Format::Code* __restrict__ codes, float* __restrict__ dst,
                std::size_t size) {
  const Place<Format::kValues> place(size);
  if (place.count <= 0) return;
  typename Format::Code in[Format::kPer];
  float out[Format::kPer];
  load<kAligned>(place, codes, in);
  if constexpr (kAdd) load<kAligned>(place, static_cast<const float*>(dst), out);
  const auto grid = Format::grid_of(get(headers, place.block));
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    const float value = Format::value_of(in[i], grid);
    out[i] = kAdd ? __fadd_rn(out[i], value) : value;
  }
  store<kAligned>(place, out, dst);
}

template <class Format, bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    reduce_pass(Messages messages, Reduction reduction) {
  using Header = typename Format::Header;
  using Code = typename Format::Code;
  const Place<Format::kValues> place(reduction.size);
  if (place.count <= 0) return;
  float p[Format::kPer], lost[Format::kPer];
  load<kAligned>(place, reduction.own, p);
  if constexpr (kResidual)
    load<kAligned>(place, static_cast<const float*>(reduction.residual), lost);
  for (int rank = 0; rank < messages.count; ++rank) {
    const std::uint8_t* message = messages.first + rank * messages.stride;
    Code in[Format::kPer];
    load<kAligned>(place, reinterpret_cast<const Code*>(message + messages.codes_at), in);
    const auto grid =
        Format::grid_of(get(reinterpret_cast<const Header*>(message), place.block));
#pragma unroll
    for (int i = 0; i < Format::kPer; ++i)
      p[i] = __fadd_rn(p[i], Format::value_of(in[i], grid));
  }
  const auto divisor = static_cast<float>(reduction.divisor);
  const auto factor = static_cast<float>(1.0 / reduction.divisor);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) {
      lost[i] = __fdiv_rn(lost[i], divisor);
      p[i] = __fadd_rn(p[i], lost[i]);
    }
  }
  const auto header = Format::header_of(place, p);
  const auto grid = Format::grid_of(header);
  bool keep = false;
  if constexpr (kResidual) keep = Format::keeps_residual(header);
  Code out[Format::kPer];
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    out[i] = Format::code_of(p[i], grid);
    if constexpr (kResidual) {
      if (!keep) lost[i] = Format::residual_of(p[i], Format::value_of(out[i], grid), grid);
      lost[i] = __fmul_rn(lost[i], divisor);
    }
  }
  if (place.lane == 0) put(static_cast<Header*>(reduction.headers), place.block, header);
  store<kAligned>(place, out, static_cast<Code*>(reduction.codes));
  if constexpr (kResidual) store<kAligned>(place, lost, reduction.residual);
}

// ---- launchers --------------------------------------------------------------------------

template <class Format>
int encode(const float* src, float factor, float* residual,
           typename Format::Header* headers, typename Format::Code* codes, std::size_t size,
           void* stream) {
  const bool aligned = aligned_to(16, src) && aligned_to(16, residual) &&
                       aligned_to(4 * sizeof(typename Format::Code), codes);
  auto kernel =
      aligned ? encode_pass<Format, false, true> : encode_pass<Format, false, false>;
  if constexpr (Format::kFeedback) {
    if (residual)
      kernel = aligned ? encode_pass<Format, true, true> : encode_pass<Format, true, false>;
  }
  return launch(kernel, size, Format::kValues, stream, src, factor, residual, headers,
                codes, size);
}

template <class Format>
int decode(const typename Format::Header* headers, const typename Format::Code* codes,
           float* dst, std::size_t size, bool add, void* stream) {
  const bool aligned =
      aligned_to(16, dst) && aligned_to(4 * sizeof(typename Format::Code), codes);
  const auto kernel =
      add ? (aligned ? decode_pass<Format, true, true> : decode_pass<Format, true, false>)
          : (aligned ? decode_pass<Format, false, true>
                     : decode_pass<Format, false, false>);
  return launch(kernel, size, Format::kValues, stream, headers, codes, dst, size);
}

template <class Format>
int reduce(Messages messages, Reduction reduction, void* stream) {
  constexpr std::size_t four_codes = 4 * sizeof(typename Format::Code);
  const bool aligned = aligned_to(16, reduction.own) &&
                       aligned_to(16, reduction.residual) &&
                       aligned_to(four_codes, reduction.codes) &&
                       aligned_to(four_codes, messages.first + messages.codes_at) &&
                       messages.stride % four_codes == 0;
  auto kernel =
      aligned ? reduce_pass<Format, false, true> : reduce_pass<Format, false, false>;
  if constexpr (Format::kFeedback) {
    if (reduction.residual)
      kernel = aligned ? reduce_pass<Format, true, true> : reduce_pass<Format, true, false>;
  }
  return launch(kernel, reduction.size, Format::kValues, stream, messages, reduction);
}

}  // namespace brigade::kernels::cuda
