// Affine with one block for all values, in two passes: the first leaves a range for each of
// its blocks of threads in scratch memory, the second makes the header of them.
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

template <bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    range_pass(const float* __restrict__ src, float factor,
               const float* __restrict__ residual, Range* __restrict__ ranges,
               std::size_t size) {
  constexpr int kValues = AffineFormat::kValues, kPer = AffineFormat::kPer;
  Ends ends;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kWarps * kValues;
  for (Place<kValues> place(size); place.count > 0; place.at += step) {
    place.count = static_cast<int>(min(size - place.at, std::size_t{kValues}));
    float p[kPer], lost[kPer];
    load<kAligned, kKeep>(place, src, p);
    if constexpr (kResidual) load<kAligned, kKeep>(place, residual, lost);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      p[i] = AffineFormat::scaled(p[i], factor);
      if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
      if (place.has(i)) ends.add(p[i]);
    }
    if (size - place.at <= step) break;
  }
  const Range range = of_threads(Range::of(ends));
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
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

template <bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    encode_whole_pass(const float* __restrict__ src, float factor,
                      float* __restrict__ residual, const Range* __restrict__ ranges,
                      int count, AffineHeader* __restrict__ header_out,
                      std::uint8_t* __restrict__ codes, std::size_t size) {
  using Format = AffineFormat;
  const AffineHeader header = whole_header(ranges, count, header_out);
  // From the end: what the first pass read last is still in the cache.
  const Place<Format::kValues> place(size, gridDim.x - 1 - blockIdx.x);
  if (place.count <= 0) return;
  float p[Format::kPer], lost[Format::kPer];
  load<kAligned>(place, src, p);
  if constexpr (kResidual) load<kAligned>(place, residual, lost);
  std::uint8_t out[Format::kPer];
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    p[i] = Format::scaled(p[i], factor);
    if constexpr (kResidual) p[i] = __fadd_rn(p[i], lost[i]);
  }
  encode_values<Format, kResidual>(p, Format::grid_of(header), out, lost);
  store<kAligned>(place, out, codes);
  if constexpr (kResidual) {
    if (!Format::keeps_residual(header)) store<kAligned>(place, lost, residual);
  }
}

// The owner's reduction: both passes add up, which takes less than to write the sum and to
// read it.
template <bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    reduce_range_pass(Messages messages, Reduction reduction, Range* __restrict__ ranges) {
  using Format = AffineFormat;
  Ends ends;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kWarps * Format::kValues;
  for (Place<Format::kValues> place(reduction.size); place.count > 0; place.at += step) {
    place.count =
        static_cast<int>(min(reduction.size - place.at, std::size_t{Format::kValues}));
    float p[Format::kPer], lost[Format::kPer];
    owners_mean<Format, true, kResidual, kAligned>(place, messages, reduction, p, lost);
#pragma unroll
    for (int i = 0; i < Format::kPer; ++i)
      if (place.has(i)) ends.add(p[i]);
    if (reduction.size - place.at <= step) break;
  }
  const Range range = of_threads(Range::of(ends));
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

template <bool kResidual, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    reduce_whole_pass(Messages messages, Reduction reduction,
                      const Range* __restrict__ ranges, int count) {
  using Format = AffineFormat;
  const AffineHeader header =
      whole_header(ranges, count, static_cast<AffineHeader*>(reduction.headers));
  const Place<Format::kValues> place(reduction.size, gridDim.x - 1 - blockIdx.x);
  if (place.count <= 0) return;
  float p[Format::kPer], lost[Format::kPer];
  owners_mean<Format, true, kResidual, kAligned>(place, messages, reduction, p, lost);
  encode_mean<Format, kResidual, kAligned>(place, header, reduction, p, lost);
}

template <bool kAdd, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    decode_whole_pass(const AffineHeader* __restrict__ header,
                      const std::uint8_t* __restrict__ codes, float* __restrict__ dst,
                      std::size_t size) {
  using Format = AffineFormat;
  const Place<Format::kValues> place(size);
  if (place.count <= 0) return;
  std::uint8_t in[Format::kPer];
  float out[Format::kPer];
  load<kAligned>(place, codes, in);
  if constexpr (kAdd) load<kAligned>(place, static_cast<const float*>(dst), out);
  const Format::Grid grid = Format::grid_of(*header);
#pragma unroll
  for (int i = 0; i < Format::kPer; ++i) {
    const float value = Format::value_of(in[i], grid);
    out[i] = kAdd ? __fadd_rn(out[i], value) : value;
  }
  store<kAligned>(place, out, dst);
}

// How many blocks of threads look for ranges.
inline int ranges_of(std::size_t size) {
  const std::size_t warps = (size + AffineFormat::kValues - 1) / AffineFormat::kValues;
  return static_cast<int>(std::min<std::size_t>((warps + kWarps - 1) / kWarps, kRanges));
}
inline std::size_t covered_by(int ranges) {
  return std::size_t{1} * ranges * kWarps * AffineFormat::kValues;
}

inline int encode_whole(const float* src, float factor, float* residual,
                        AffineHeader* header, std::uint8_t* codes, std::size_t size,
                        void* scratch, void* stream) {
  const bool aligned =
      aligned_to(16, src) && aligned_to(16, residual) && aligned_to(4, codes);
  const auto first = residual
                         ? (aligned ? range_pass<true, true> : range_pass<true, false>)
                         : (aligned ? range_pass<false, true> : range_pass<false, false>);
  const auto second =
      residual
          ? (aligned ? encode_whole_pass<true, true> : encode_whole_pass<true, false>)
          : (aligned ? encode_whole_pass<false, true> : encode_whole_pass<false, false>);
  auto* ranges = static_cast<Range*>(scratch);
  const int count = ranges_of(size);
  const int error = launch(first, covered_by(count), AffineFormat::kValues, stream, src,
                           factor, residual, ranges, size);
  if (error) return error;
  return launch(second, size, AffineFormat::kValues, stream, src, factor, residual, ranges,
                count, header, codes, size);
}

inline int reduce_whole(Messages messages, Reduction reduction, void* scratch,
                        void* stream) {
  const bool aligned = aligned_to_words<AffineFormat>(messages, reduction);
  const auto first =
      reduction.residual
          ? (aligned ? reduce_range_pass<true, true> : reduce_range_pass<true, false>)
          : (aligned ? reduce_range_pass<false, true> : reduce_range_pass<false, false>);
  const auto second =
      reduction.residual
          ? (aligned ? reduce_whole_pass<true, true> : reduce_whole_pass<true, false>)
          : (aligned ? reduce_whole_pass<false, true> : reduce_whole_pass<false, false>);
  auto* ranges = static_cast<Range*>(scratch);
  const int count = ranges_of(reduction.size);
  const int error = launch(first, covered_by(count), AffineFormat::kValues, stream,
                           messages, reduction, ranges);
  if (error) return error;
  return launch(second, reduction.size, AffineFormat::kValues, stream, messages, reduction,
                ranges, count);
}

inline int decode_whole(const AffineHeader* header, const std::uint8_t* codes, float* dst,
                        std::size_t size, bool add, void* stream) {
  const bool aligned = aligned_to(16, dst) && aligned_to(4, codes);
  const auto kernel =
      add ? (aligned ? decode_whole_pass<true, true> : decode_whole_pass<true, false>)
          : (aligned ? decode_whole_pass<false, true> : decode_whole_pass<false, false>);
  return launch(kernel, size, AffineFormat::kValues, stream, header, codes, dst, size);
}

}  // namespace brigade::kernels::cuda
