// Affine with one block for all values, in two passes: the first leaves a range for each of
// its blocks of threads in scratch memory, the second makes the header of them. Both have
// so few blocks of threads that each does many blocks of values; the second begins with
// what the first read or wrote last, which is still in the cache.
#pragma once
#include <algorithm>

#include "kernels/cuda/passes.cuh"

namespace brigade::kernels::cuda {

constexpr int kRanges = kAffineScratchBytes / sizeof(Range);

// The range of what every thread has, for the first warp.
__device__ inline Range of_threads(Range mine) {
  __shared__ Range of_warps[kWarps];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  mine = mine.of_warp();
  if (lane == 0) of_warps[warp] = mine;
  __syncthreads();
  return (lane < kWarps ? of_warps[lane] : Range{}).of_warp();
}

// body(place) for the blocks of values that are this warp's.
template <class Body>
__device__ inline void each_place(std::size_t size, bool from_end, Body body) {
  constexpr int kValues = AffineFormat::kValues;
  const std::size_t all = (size + kValues - 1) / kValues;
  const std::size_t step = std::size_t{1} * gridDim.x * kWarps;
  for (std::size_t block = warp_of_grid(); block < all; block += step)
    body(Place<kValues>(size, from_end ? all - 1 - block : block));
}

// What the whole grid sees of all p's: read(full, place, p) gives them.
template <class Read>
__device__ inline void find_range(std::size_t size, bool aligned, Range* ranges,
                                  Read read) {
  Ends ends;
  each_place(size, false, [&](const auto& place) {
    float p[AffineFormat::kPer];
    const auto add = [&](auto full) {
      read(full, place, p);
#pragma unroll
      for (int i = 0; i < AffineFormat::kPer; ++i)
        if (decltype(full)::value || place.has(i)) ends.add(p[i]);
    };
    in_words(place, aligned) ? add(std::true_type()) : add(std::false_type());
  });
  const Range range = of_threads(Range::of(ends));
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

// p = src * factor + residual
template <bool kResidual, bool kFull, Reading kReading>
__device__ inline void read_values(const Place<AffineFormat::kValues>& place,
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
  find_range(size, aligned, ranges, [&](auto full, const auto& place, auto& p) {
    read_values<kResidual, decltype(full)::value, kKeep>(place, src, factor, residual, p);
  });
}

// The header of all ranges; the first block of threads leaves it.
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
__device__ inline void encode_part(const Place<AffineFormat::kValues>& place,
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

// The owner's reduction. p takes the place of `own`, so that the second pass reads nothing
// else: it moves fewer bytes than two passes over all messages, except for few ranks
// without a residual.
template <bool kResidual>
__global__ void __launch_bounds__(kThreads, 3)
    mean_pass(Messages messages, Reduction reduction, Range* __restrict__ ranges,
              bool aligned) {
  using Format = AffineFormat;
  find_range(reduction.size, aligned, ranges, [&](auto full, const auto& place, auto& p) {
    constexpr bool kFull = decltype(full)::value;
    float lost[Format::kPer];
    owners_mean<Format, true, kResidual, kFull>(place, messages, reduction, p, lost);
    store<kFull, kKeep>(place, p, reduction.own);
  });
}

template <bool kResidual, bool kFull>
__device__ inline void encode_part_of_mean(const Place<AffineFormat::kValues>& place,
                                           const Reduction& reduction,
                                           const AffineHeader& header) {
  float p[AffineFormat::kPer], lost[AffineFormat::kPer];
  load<kFull>(place, reduction.own, p);
  if (kResidual && AffineFormat::keeps_residual(header)) {
    load<kFull>(place, reduction.residual, lost);
    divide_by_ranks(lost, reduction.divisor);
  }
  encode_mean<AffineFormat, kResidual, kFull>(place, header, reduction, p, lost);
}

template <bool kResidual>
__global__ void __launch_bounds__(kThreads)
    encode_mean_pass(Reduction reduction, const Range* __restrict__ ranges, bool aligned) {
  const AffineHeader header =
      whole_header(ranges, gridDim.x, static_cast<AffineHeader*>(reduction.headers));
  each_place(reduction.size, true, [&](const auto& place) {
    in_words(place, aligned)
        ? encode_part_of_mean<kResidual, true>(place, reduction, header)
        : encode_part_of_mean<kResidual, false>(place, reduction, header);
  });
}

// How many values a grid of at most kRanges blocks of threads takes at once.
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

inline int reduce_whole(Messages messages, Reduction reduction, void* scratch,
                        void* stream) {
  const bool aligned = aligned_to_words<AffineFormat>(messages, reduction);
  auto* ranges = static_cast<Range*>(scratch);
  const std::size_t at_once = values_at_once(reduction.size);
  const int error =
      launch(reduction.residual ? mean_pass<true> : mean_pass<false>, at_once,
             AffineFormat::kValues, stream, messages, reduction, ranges, aligned);
  if (error) return error;
  return launch(reduction.residual ? encode_mean_pass<true> : encode_mean_pass<false>,
                at_once, AffineFormat::kValues, stream, reduction, ranges, aligned);
}

}  // namespace brigade::kernels::cuda
