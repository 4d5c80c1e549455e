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

// Whether the warp loads and stores whole words. It is computed once a block, not for each
// word.
template <int kValues>
__device__ inline bool in_words(const ThreadPosition<kValues>& place, bool aligned) {
  return aligned && place.full();
}

// p's codes, four in a word. With kLosing, `lost` becomes their error. The quick path is
// compiled for full blocks only.
template <class Format, bool kLosing, bool kFull>
__device__ inline void encode_values(
    const float (&p)[Format::kPer], const typename Format::Header& header,
    FourWord<typename Format::Code> (&words)[Format::kPer / 4],
    float (&lost)[Format::kPer]) {
  const auto grid = Format::grid_of(header);
  const auto encode = [&](auto quick) {
    constexpr bool kQuick = decltype(quick)::value;
#pragma unroll
    for (int k = 0; k < Format::kPer / 4; ++k)
      words[k] = Format::template word_of<kQuick>(p, k, grid);
    if constexpr (kLosing) {
      Format::values_of(words, header, lost);
#pragma unroll
      for (int i = 0; i < Format::kPer; ++i)
        lost[i] = Format::template residual_of<kQuick>(p[i], lost[i], grid);
    }
  };
  kFull&& Format::is_quick(grid) ? encode(std::bool_constant<kFull>())
                                 : encode(std::false_type());
}

// p = src * factor + residual
template <class Format, bool kResidual, bool kFull>
__device__ inline void encode_block(const ThreadPosition<Format::kValues>& place,
                                    const float* src, float factor, float* residual,
                                    typename Format::Header* headers,
                                    typename Format::Code* codes) {
  using Code = typename Format::Code;
  float p[Format::kPer], lost[Format::kPer];
  load<kFull>(place, src, p);
  if constexpr (kResidual) load<kFull>(place, residual, lost);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = Format::scaled(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  const auto header = Format::template header_of<kFull>(place, p);
  FourWord<Code> words[Format::kPer / 4];
  encode_values<Format, kResidual, kFull>(p, header, words, lost);
  if (place.lane == 0) put(headers, place.block, header);
  store_words<Code, kFull>(place, words, codes);
  if constexpr (kResidual) {
    if (!Format::keeps_residual(header)) store<kFull>(place, lost, residual);
  }
}

template <class Format, bool kResidual>
__global__ void __launch_bounds__(kThreads)
    encode_pass(const float* __restrict__ src, float factor, float* __restrict__ residual,
                typename Format::Header* __restrict__ headers,
                typename Format::Code* __restrict__ codes, std::size_t size, bool aligned) {
  const ThreadPosition<Format::kValues> place(size);
  if (place.count <= 0) return;
  if (in_words(place, aligned))
    encode_block<Format, kResidual, true>(place, src, factor, residual, headers, codes);
  else
    encode_block<Format, kResidual, false>(place, src, factor, residual, headers, codes);
}

// dst = decoded, or dst += decoded
template <class Format, bool kAdd, bool kFull>
__device__ inline void decode_block(const ThreadPosition<Format::kValues>& place,
                                    const typename Format::Header& header,
                                    const typename Format::Code* codes, float* dst) {
  using Code = typename Format::Code;
  FourWord<Code> words[Format::kPer / 4];
  float values[Format::kPer], out[Format::kPer];
  load_words<Code, kFull>(place, codes, words);
  if constexpr (kAdd) load<kFull>(place, dst, out);
  Format::values_of(words, header, values);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i)
    out[i] = kAdd ? __fadd_rn(out[i], values[i]) : values[i];
  store<kFull>(place, out, dst);
}

// kWhole: a message has one header for all blocks.
template <class Format, bool kWhole, bool kAdd>
__global__ void __launch_bounds__(kThreads)
    decode_pass(const typename Format::Header* __restrict__ headers,
                const typename Format::Code* __restrict__ codes, float* __restrict__ dst,
                std::size_t size, bool aligned) {
  const ThreadPosition<Format::kValues> place(size);
  if (place.count <= 0) return;
  const auto header = get(headers, kWhole ? 0 : place.block);
  in_words(place, aligned) ? decode_block<Format, kAdd, true>(place, header, codes, dst)
                           : decode_block<Format, kAdd, false>(place, header, codes, dst);
}

// sum += the messages' values, in order. Codes of several messages are loaded before any is
// added.
template <class Format, bool kWhole, bool kFull, Reading kReading>
__device__ inline void add_messages(const ThreadPosition<Format::kValues>& place,
                                    const Messages& messages, float (&sum)[Format::kPer]) {
  using Header = typename Format::Header;
  using Code = typename Format::Code;
  constexpr int kAtOnce = 3;
  const std::uint8_t* message = messages.first;
  for (int first = 0; first < messages.count; first += kAtOnce) {
    FourWord<Code> in[kAtOnce][Format::kPer / 4];
    Header headers[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      load_words<Code, kFull, kReading>(
          place, reinterpret_cast<const Code*>(message + messages.codes_at), in[k]);
      headers[k] = get(reinterpret_cast<const Header*>(message), kWhole ? 0 : place.block);
      message += messages.stride;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= messages.count) break;
      float values[Format::kPer];
      Format::values_of(in[k], headers[k], values);
#pragma unroll
      for (int i = 0; i < Format::kPer; ++i) sum[i] = __fadd_rn(sum[i], values[i]);
    }
  }
}

// Equals the CPU's float(1.0 / ranks): for whole numbers that are floats, rounding once
// gives the same.
__device__ inline float reciprocal_of(int ranks) {
  return __frcp_rn(static_cast<float>(ranks));
}

// values /= divisor
template <int kPer>
__device__ inline void divide_by_ranks(float (&values)[kPer], int divisor) {
  if ((divisor & (divisor - 1)) == 0) {
    // The reciprocal of a power of two is exact.
    const float factor = reciprocal_of(divisor);
#pragma unroll
    for (int i = 0; i < kPer; ++i) values[i] = __fmul_rn(values[i], factor);
  } else {
    const auto by = static_cast<float>(divisor);
#pragma unroll
    for (int i = 0; i < kPer; ++i) values[i] = __fdiv_rn(values[i], by);
  }
}

// p = sum * (1 / divisor) + residual / divisor
template <class Format, bool kWhole, bool kResidual, bool kFull, Reading kReading = kStream>
__device__ inline void owners_mean(const ThreadPosition<Format::kValues>& place,
                                   const Messages& messages, const OwnerStep& reduction,
                                   float (&p)[Format::kPer]) {
  float lost[Format::kPer];
  load<kFull, kReading>(place, reduction.own, p);
  if constexpr (kResidual) load<kFull, kReading>(place, reduction.residual, lost);
  add_messages<Format, kWhole, kFull, kReading>(place, messages, p);
  if constexpr (kResidual) divide_by_ranks(lost, reduction.divisor);
  const float factor = reciprocal_of(reduction.divisor);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = __fmul_rn(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
}

// Makes the codes of p and stores their error. A block that can't be encoded keeps its
// residual, which is then read again: holding it until here would cost all blocks
// registers.
template <class Format, bool kResidual, bool kFull>
__device__ inline void encode_mean(const ThreadPosition<Format::kValues>& place,
                                   const typename Format::Header& header,
                                   const OwnerStep& reduction,
                                   const float (&p)[Format::kPer]) {
  using Code = typename Format::Code;
  FourWord<Code> words[Format::kPer / 4];
  float lost[Format::kPer];
  encode_values<Format, kResidual, kFull>(p, header, words, lost);
  store_words<Code, kFull>(place, words, static_cast<Code*>(reduction.codes));
  if constexpr (kResidual) {
    if (Format::keeps_residual(header)) {
      load<kFull>(place, reduction.residual, lost);
      divide_by_ranks(lost, reduction.divisor);
    }
    const auto divisor = static_cast<float>(reduction.divisor);
#pragma unroll
    for (int i = 0; i < Format::kPer; ++i) lost[i] = __fmul_rn(lost[i], divisor);
    store<kFull>(place, lost, reduction.residual);
  }
}

template <class Format, bool kResidual, bool kFull>
__device__ inline void reduce_block(const ThreadPosition<Format::kValues>& place,
                                    const Messages& messages, const OwnerStep& reduction) {
  using Header = typename Format::Header;
  float p[Format::kPer];
  owners_mean<Format, false, kResidual, kFull>(place, messages, reduction, p);
  const Header header = Format::template header_of<kFull>(place, p);
  if (place.lane == 0) put(static_cast<Header*>(reduction.headers), place.block, header);
  encode_mean<Format, kResidual, kFull>(place, header, reduction, p);
}

// The number of blocks of kReduceThreads that should fit a multiprocessor.
constexpr int reduce_blocks_at_once(int values, bool residual) {
  return warps_at_once(values, residual) * kLanes / kReduceThreads;
}

template <class Format, bool kResidual>
__global__ void __launch_bounds__(kReduceThreads,
                                  reduce_blocks_at_once(Format::kValues, kResidual))
    reduce_pass(Messages messages, OwnerStep reduction, bool aligned) {
  const ThreadPosition<Format::kValues> place(reduction.size);
  if (place.count <= 0) return;
  in_words(place, aligned)
      ? reduce_block<Format, kResidual, true>(place, messages, reduction)
      : reduce_block<Format, kResidual, false>(place, messages, reduction);
}

// ---- launchers --------------------------------------------------------------------------

template <class Format>
int encode(const float* src, float factor, float* residual,
           typename Format::Header* headers, typename Format::Code* codes, std::size_t size,
           void* stream) {
  const bool aligned = aligned_to(16, src) && aligned_to(16, residual) &&
                       aligned_to(4 * sizeof(typename Format::Code), codes);
  auto kernel = encode_pass<Format, false>;
  if constexpr (Format::kFeedback) {
    if (residual) kernel = encode_pass<Format, true>;
  }
  return launch(kernel, size, Format::kValues, stream, src, factor, residual, headers,
                codes, size, aligned);
}

template <class Format, bool kWhole = false>
int decode(const typename Format::Header* headers, const typename Format::Code* codes,
           float* dst, std::size_t size, bool add, void* stream) {
  const bool aligned =
      aligned_to(16, dst) && aligned_to(4 * sizeof(typename Format::Code), codes);
  const auto kernel =
      add ? decode_pass<Format, kWhole, true> : decode_pass<Format, kWhole, false>;
  return launch(kernel, size, Format::kValues, stream, headers, codes, dst, size, aligned);
}

template <class Format>
bool aligned_to_words(const Messages& messages, const OwnerStep& reduction) {
  constexpr std::size_t four_codes = 4 * sizeof(typename Format::Code);
  return aligned_to(16, reduction.own) && aligned_to(16, reduction.residual) &&
         aligned_to(four_codes, reduction.codes) &&
         aligned_to(four_codes, messages.first + messages.codes_at) &&
         messages.stride % four_codes == 0;
}

template <class Format>
int reduce(Messages messages, OwnerStep reduction, void* stream) {
  const bool aligned = aligned_to_words<Format>(messages, reduction);
  auto kernel = reduce_pass<Format, false>;
  if constexpr (Format::kFeedback) {
    if (reduction.residual) kernel = reduce_pass<Format, true>;
  }
  return launch<kReduceThreads>(kernel, reduction.size, Format::kValues, stream, messages,
                                reduction, aligned);
}

}  // namespace brigade::kernels::cuda
