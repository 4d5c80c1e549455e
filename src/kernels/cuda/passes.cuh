// The passes over memory, for every format: encode, decode, and the owner's reduction.
#pragma once
#include <type_traits>

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

// p's codes. Where kLosing, `lost` becomes what they lose.
template <class Format, bool kLosing>
__device__ inline void encode_values(const float (&p)[Format::kPer],
                                     const typename Format::Grid& grid,
                                     typename Format::Code (&out)[Format::kPer],
                                     float (&lost)[Format::kPer]) {
  const auto encode = [&](auto quick) {
#pragma unroll
    for (int i = 0; i < Format::kPer; ++i) {
      out[i] = Format::template code_of<decltype(quick)::value>(p[i], grid);
      if constexpr (kLosing)
        lost[i] = Format::residual_of(p[i], Format::value_of(out[i], grid), grid);
    }
  };
  Format::is_quick(grid) ? encode(std::true_type()) : encode(std::false_type());
}

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
    p[i] = Format::scaled(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  const auto header = Format::header_of(place, p);
  typename Format::Code out[Format::kPer];
  encode_values<Format, kResidual>(p, Format::grid_of(header), out, lost);
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

// sum += the messages' values, in order. Codes of several are loaded before any is added.
// kWhole: a message has one header for all blocks.
template <class Format, bool kWhole, bool kAligned>
__device__ inline void add_messages(const Place<Format::kValues>& place,
                                    const Messages& messages, float (&sum)[Format::kPer]) {
  using Header = typename Format::Header;
  using Code = typename Format::Code;
  constexpr int kAtOnce = 3;
  for (int first = 0; first < messages.count; first += kAtOnce) {
    FourWord<Code> in[kAtOnce][Format::kPer / 4];
    Header headers[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      const std::uint8_t* message = messages.first + (first + k) * messages.stride;
      load_words<Code, kAligned>(
          place, reinterpret_cast<const Code*>(message + messages.codes_at), in[k]);
      headers[k] = get(reinterpret_cast<const Header*>(message), kWhole ? 0 : place.block);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      const auto grid = Format::grid_of(headers[k]);
#pragma unroll
      for (int i = 0; i < Format::kPer; ++i)
        sum[i] = __fadd_rn(sum[i], Format::value_of(code_in<Code>(in[k], i), grid));
    }
  }
}

// p = sum * (1 / divisor) + residual / divisor, of which `lost` keeps the second part.
template <class Format, bool kWhole, bool kResidual, bool kAligned>
__device__ inline void owners_mean(const Place<Format::kValues>& place,
                                   const Messages& messages, const Reduction& reduction,
                                   float (&p)[Format::kPer], float (&lost)[Format::kPer]) {
  load<kAligned>(place, reduction.own, p);
  if constexpr (kResidual)
    load<kAligned>(place, static_cast<const float*>(reduction.residual), lost);
  add_messages<Format, kWhole, kAligned>(place, messages, p);
  const auto divisor = static_cast<float>(reduction.divisor);
  const auto factor = static_cast<float>(1.0 / reduction.divisor);
  // Then a product is rounded as the quotient is.
  const bool power_of_two = (reduction.divisor & (reduction.divisor - 1)) == 0;
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) {
      lost[i] = power_of_two ? __fmul_rn(lost[i], factor) : __fdiv_rn(lost[i], divisor);
      p[i] = __fadd_rn(p[i], lost[i]);
    }
  }
}

// Codes of p; what they lose is kept.
template <class Format, bool kResidual, bool kAligned>
__device__ inline void encode_mean(const Place<Format::kValues>& place,
                                   const typename Format::Header& header,
                                   const Reduction& reduction,
                                   const float (&p)[Format::kPer],
                                   float (&lost)[Format::kPer]) {
  typename Format::Code out[Format::kPer];
  float left[Format::kPer];
  encode_values<Format, kResidual>(p, Format::grid_of(header), out, left);
  if constexpr (kResidual) {
    const auto divisor = static_cast<float>(reduction.divisor);
    const bool keep = Format::keeps_residual(header);
#pragma unroll
    for (int i = 0; i < Format::kPer; ++i)
      lost[i] = __fmul_rn(keep ? lost[i] : left[i], divisor);
  }
  store<kAligned>(place, out, static_cast<typename Format::Code*>(reduction.codes));
  if constexpr (kResidual) store<kAligned>(place, lost, reduction.residual);
}

template <class Format, bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    reduce_pass(Messages messages, Reduction reduction) {
  using Header = typename Format::Header;
  const Place<Format::kValues> place(reduction.size);
  if (place.count <= 0) return;
  float p[Format::kPer], lost[Format::kPer];
  owners_mean<Format, false, kResidual, kAligned>(place, messages, reduction, p, lost);
  const Header header = Format::header_of(place, p);
  if (place.lane == 0) put(static_cast<Header*>(reduction.headers), place.block, header);
  encode_mean<Format, kResidual, kAligned>(place, header, reduction, p, lost);
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
bool aligned_to_words(const Messages& messages, const Reduction& reduction) {
  constexpr std::size_t four_codes = 4 * sizeof(typename Format::Code);
  return aligned_to(16, reduction.own) && aligned_to(16, reduction.residual) &&
         aligned_to(four_codes, reduction.codes) &&
         aligned_to(four_codes, messages.first + messages.codes_at) &&
         messages.stride % four_codes == 0;
}

template <class Format>
int reduce(Messages messages, Reduction reduction, void* stream) {
  const bool aligned = aligned_to_words<Format>(messages, reduction);
  auto kernel =
      aligned ? reduce_pass<Format, false, true> : reduce_pass<Format, false, false>;
  if constexpr (Format::kFeedback) {
    if (reduction.residual)
      kernel = aligned ? reduce_pass<Format, true, true> : reduce_pass<Format, true, false>;
  }
  return launch(kernel, reduction.size, Format::kValues, stream, messages, reduction);
}

}  // namespace brigade::kernels::cuda
