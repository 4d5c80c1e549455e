// Affine with one block for all values, in two passes: the first stores a range for each of
// its thread blocks in scratch memory, the second makes the header from these. Both have
// few thread blocks, and each does many blocks of values.
//
// The second pass begins at the end, which the first one left in the cache. The first one
// therefore streams everything except the end, which would be evicted otherwise.
#pragma once
#include <algorithm>

#include "kernels/cuda/passes.cuh"

namespace brigade::kernels::cuda {

constexpr int kWarps = kThreads / kLanes;
constexpr int kRanges = kAffineScratchBytes / sizeof(Range);

// Less than the size of a GPU's cache: 24 MiB were best on an H200, which has 60.
constexpr std::size_t kKeptBytes = std::size_t{24} << 20;

// The range of all threads' values, for the first warp.
__device__ inline Range of_threads(Range mine) {
  __shared__ Range of_warps[kWarps];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  mine = mine.of_warp();
  if (lane == 0) of_warps[warp] = mine;
  __syncthreads();
  return (lane < kWarps ? of_warps[lane] : Range{}).of_warp();
}

// Calls body(place) for this warp's blocks of values.
template <class Body>
__device__ inline void each_place(std::size_t size, bool from_end, Body body) {
  constexpr int kValues = AffineFormat::kValues;
  const std::size_t all = (size + kValues - 1) / kValues;
  const std::size_t step = std::size_t{1} * gridDim.x * kWarps;
  for (std::size_t block = warp_of_grid(); block < all; block += step)
    body(ThreadPosition<kValues>(size, from_end ? all - 1 - block : block));
}

template <Reading kReading>
using ReadingIs = std::integral_constant<Reading, kReading>;

// Stores the range of this thread block's p's, which read(full, reading, place, p) gives.
// The second pass will read `bytes` again for each value; `reading` says whether they stay
// in the cache.
template <class Read>
__device__ inline void find_range(std::size_t size, int bytes, bool aligned, Range* ranges,
                                  Read read) {
  Ends ends;
  each_place(size, false, [&](const auto& place) {
    float p[AffineFormat::kPer];
    const auto add = [&](auto full, auto reading) {
      read(full, reading, place, p);
#pragma unroll
      for (int i = 0; i < AffineFormat::kPer; ++i)
        if (decltype(full)::value || place.has(i)) ends.add(p[i]);
    };
    if (!in_words(place, aligned))
      add(std::false_type(), ReadingIs<kKeep>());
    else if ((size - place.at) * bytes <= kKeptBytes)
      add(std::true_type(), ReadingIs<kKeep>());
    else
      add(std::true_type(), ReadingIs<kStream>());
  });
  const Range range = of_threads(Range::of(ends));
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

// p = src * factor + residual
template <bool kResidual, bool kFull, Reading kReading>
__device__ inline void read_values(const ThreadPosition<AffineFormat::kValues>& place,
                                   const float* src, float factor, const float* residual,
                                   float (&p)[AffineFormat::kPer]) {
  float lost[AffineFormat::kPer];
  load<kFull, kReading>(place, src, p);
  if constexpr (kResidual) load<kFull, kReading>(place, residual, lost);
#pragma unroll
  for (int i = 0; i < AffineFormat::kPer; ++i) {
    p[i] = AffineFormat::scaled(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
}

template <bool kResidual>
__global__ void __launch_bounds__(kThreads)
    range_pass(const float* __restrict__ src, float factor,
               const float* __restrict__ residual, Range* __restrict__ ranges,
               std::size_t size, bool aligned) {
  constexpr int kBytes = (kResidual ? 2 : 1) * sizeof(float);
  find_range(size, kBytes, aligned, ranges,
             [&](auto full, auto reading, const auto& place, auto& p) {
               read_values<kResidual, decltype(full)::value, decltype(reading)::value>(
                   place, src, factor, residual, p);
             });
}

// Makes the header of all ranges; the first thread block stores it.
__device__ inline AffineHeader whole_header(const Range* ranges, int count,
                                            AffineHeader* header_out) {
  __shared__ AffineHeader shared;
  Range range;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    range.least = min(range.least, ranges[i].least);
    range.most = max(range.most, ranges[i].most);
  }
  range = of_threads(range);
  if (threadIdx.x == 0) {
    shared = range.header();
    if (blockIdx.x == 0) *header_out = shared;
  }
  __syncthreads();
  return shared;
}

template <bool kResidual, bool kFull>
__device__ inline void encode_part(const ThreadPosition<AffineFormat::kValues>& place,
                                   const float* src, float factor, float* residual,
                                   const AffineHeader& header, std::uint8_t* codes) {
  using Format = AffineFormat;
  float p[Format::kPer], lost[Format::kPer];
  unsigned words[Format::kPer / 4];
  read_values<kResidual, kFull, kStream>(place, src, factor, residual, p);
  encode_values<Format, kResidual, kFull>(p, header, words, lost);
  store_words<std::uint8_t, kFull>(place, words, codes);
  if constexpr (kResidual) {
    if (!Format::keeps_residual(header)) store<kFull>(place, lost, residual);
  }
}

template <bool kResidual>
__global__ void __launch_bounds__(kThreads)
    encode_whole_pass(const float* __restrict__ src, float factor,
                      float* __restrict__ residual, const Range* __restrict__ ranges,
                      AffineHeader* __restrict__ header_out,
                      std::uint8_t* __restrict__ codes, std::size_t size, bool aligned) {
  const AffineHeader header = whole_header(ranges, gridDim.x, header_out);
  each_place(size, true, [&](const auto& place) {
    in_words(place, aligned)
        ? encode_part<kResidual, true>(place, src, factor, residual, header, codes)
        : encode_part<kResidual, false>(place, src, factor, residual, header, codes);
  });
}

// The owner's reduction has two forms. With few messages both passes sum them; with more
// the first pass overwrites `own` with p, and the second reads only that, which moves fewer
// bytes. With a residual the second form was faster for four ranks, too.
constexpr int kMessagesAddedTwice = 4;

template <bool kResidual, bool kTwice>
__global__ void __launch_bounds__(kThreads, kResidual ? 3 : 4)
    mean_pass(Messages messages, OwnerStep reduction, Range* __restrict__ ranges,
              bool aligned) {
  const int bytes = sizeof(float) + (kTwice ? messages.count : 0);
  find_range(
      reduction.size, bytes, aligned, ranges,
      [&](auto full, auto reading, const auto& place, auto& p) {
        constexpr bool kFull = decltype(full)::value;
        constexpr Reading kReading = decltype(reading)::value;
        owners_mean<AffineFormat, true, kResidual, kFull, kTwice ? kReading : kStream>(
            place, messages, reduction, p);
        if constexpr (!kTwice) store<kFull, kReading>(place, p, reduction.own);
      });
}

template <bool kResidual, bool kTwice>
__global__ void __launch_bounds__(kThreads, kResidual ? 3 : 4)
    encode_mean_pass(Messages messages, OwnerStep reduction,
                     const Range* __restrict__ ranges, bool aligned) {
  const AffineHeader header =
      whole_header(ranges, gridDim.x, static_cast<AffineHeader*>(reduction.headers));
  each_place(reduction.size, true, [&](const auto& place) {
    const auto encode_part = [&](auto full) {
      constexpr bool kFull = decltype(full)::value;
      float p[AffineFormat::kPer];
      if constexpr (kTwice)
        owners_mean<AffineFormat, true, kResidual, kFull>(place, messages, reduction, p);
      else
        load<kFull>(place, reduction.own, p);
      encode_mean<AffineFormat, kResidual, kFull>(place, header, reduction, p);
    };
    in_words(place, aligned) ? encode_part(std::true_type())
                             : encode_part(std::false_type());
  });
}

// How many values a grid of at most kRanges thread blocks takes at once.
inline std::size_t values_at_once(std::size_t size) {
  return std::min(size, std::size_t{1} * kRanges * kWarps * AffineFormat::kValues);
}

inline int encode_whole(const float* src, float factor, float* residual,
                        AffineHeader* header, std::uint8_t* codes, std::size_t size,
                        void* scratch, void* stream) {
  const bool aligned =
      aligned_to(16, src) && aligned_to(16, residual) && aligned_to(4, codes);
  auto* ranges = static_cast<Range*>(scratch);
  const std::size_t at_once = values_at_once(size);
  const int error =
      launch(residual ? range_pass<true> : range_pass<false>, at_once,
             AffineFormat::kValues, stream, src, factor, residual, ranges, size, aligned);
  if (error) return error;
  return launch(residual ? encode_whole_pass<true> : encode_whole_pass<false>, at_once,
                AffineFormat::kValues, stream, src, factor, residual, ranges, header, codes,
                size, aligned);
}

template <bool kResidual, bool kTwice>
int reduce_whole_in(Messages messages, OwnerStep reduction, void* scratch, void* stream) {
  const bool aligned = aligned_to_words<AffineFormat>(messages, reduction);
  auto* ranges = static_cast<Range*>(scratch);
  const std::size_t at_once = values_at_once(reduction.size);
  const int error = launch(mean_pass<kResidual, kTwice>, at_once, AffineFormat::kValues,
                           stream, messages, reduction, ranges, aligned);
  if (error) return error;
  return launch(encode_mean_pass<kResidual, kTwice>, at_once, AffineFormat::kValues, stream,
                messages, reduction, ranges, aligned);
}

inline int reduce_whole(Messages messages, OwnerStep reduction, void* scratch,
                        void* stream) {
  if (reduction.residual)
    return reduce_whole_in<true, false>(messages, reduction, scratch, stream);
  return messages.count <= kMessagesAddedTwice
             ? reduce_whole_in<false, true>(messages, reduction, scratch, stream)
             : reduce_whole_in<false, false>(messages, reduction, scratch, stream);
}

}  // namespace brigade::kernels::cuda
