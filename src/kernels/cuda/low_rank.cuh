// PowerSGD's products, see kernels/low_rank.h. M is rows x columns, P rows x R, Q columns x
// R, all row-major. Sums run in a fixed order, so that every run gives the same bits; they
// are not the CPU's.
#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade::kernels::cuda {

constexpr int kWarp = 32;
constexpr int kRowsOfABlock = 8;  // a warp each

// A warp a row: sum = M + (sum - last_P last_Qᵀ); P = sum Q. Where `sum` is null: P = M Q.
// A value of M that is not finite goes into P, where all ranks see it, but not into `sum`.
template <int R>
__global__ void project_rows(std::size_t rows, std::size_t columns, const float* m,
                             float* sum, const float* last_p, const float* last_q,
                             const float* q, float* p) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfABlock + threadIdx.y;
  if (row >= rows) return;
  float left[R], total[R] = {};
#pragma unroll
  for (int k = 0; k < R; ++k) left[k] = last_p ? last_p[row * R + k] : 0;
#pragma unroll 4
  for (std::size_t column = threadIdx.x; column < columns; column += kWarp) {
    const std::size_t at = row * columns + column;
    float value = m[at];
    if (sum) {
      float owed = sum[at];
      if (last_p) {
        float product = 0;
#pragma unroll
        for (int k = 0; k < R; ++k) product += left[k] * last_q[column * R + k];
        owed -= product;
      }
      sum[at] = isfinite(value) ? value + owed : owed;
      value += owed;
    }
#pragma unroll
    for (int k = 0; k < R; ++k) total[k] += value * q[column * R + k];
  }
#pragma unroll
  for (int k = 0; k < R; ++k) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      total[k] += __shfl_down_sync(0xffffffffu, total[k], offset);
    if (threadIdx.x == 0) p[row * R + k] = total[k];
  }
}

// A thread a column, for the rows of one part: partial[part] = Mᵀ P of those rows.
template <int R>
__global__ void project_columns(std::size_t rows, std::size_t columns,
                                std::size_t rows_of_a_part, const float* m, const float* p,
                                float* partial) {
  const std::size_t column = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const std::size_t begin = std::size_t{blockIdx.y} * rows_of_a_part;
  const std::size_t end = min(rows, begin + rows_of_a_part);
  float total[R] = {};
#pragma unroll 4
  for (std::size_t row = begin; row < end; ++row) {
    const float value = m[row * columns + column];
#pragma unroll
    for (int k = 0; k < R; ++k) total[k] += value * p[row * R + k];
  }
  float* to = partial + (std::size_t{blockIdx.y} * columns + column) * R;
#pragma unroll
  for (int k = 0; k < R; ++k) to[k] = total[k];
}

static __global__ void add_parts(std::size_t size, int parts, const float* partial,
                                 float* q) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= size) return;
  float total = 0;
  for (int part = 0; part < parts; ++part) total += partial[std::size_t(part) * size + at];
  q[at] = total;
}

template <int R>
__global__ void rebuild_rows(std::size_t rows, std::size_t columns, float* m,
                             const float* p, const float* q) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfABlock + threadIdx.y;
  if (row >= rows) return;
  float left[R];
#pragma unroll
  for (int k = 0; k < R; ++k) left[k] = p[row * R + k];
#pragma unroll 4
  for (std::size_t column = threadIdx.x; column < columns; column += kWarp) {
    float value = 0;
#pragma unroll
    for (int k = 0; k < R; ++k) value += left[k] * q[column * R + k];
    m[row * columns + column] = value;
  }
}

// Unless `check` is finite: sum -= M, where M is finite. What is not finite then becomes
// zero.
static __global__ void take_back_if_lost(const float* check, const float* m, float* sum,
                                         std::size_t size) {
  if (isfinite(*check)) return;
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; at < size;
       at += step) {
    const float value = isfinite(m[at]) ? sum[at] - m[at] : sum[at];
    sum[at] = isfinite(value) ? value : 0;
  }
}

constexpr int kThreadsOfAMatrix = 512;

// The sum of a[i] b[i] over a block's threads, for all of them; the values lie R apart.
template <int R>
__device__ double dot(std::size_t rows, const float* a, const float* b) {
  __shared__ double lanes[kThreadsOfAMatrix];
  double total = 0;
  for (std::size_t row = threadIdx.x; row < rows; row += kThreadsOfAMatrix)
    total += double(a[row * R]) * double(b[row * R]);
  lanes[threadIdx.x] = total;
  __syncthreads();
  for (int half = kThreadsOfAMatrix / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    __syncthreads();
  }
  total = lanes[0];
  __syncthreads();  // before the next one writes there
  return total;
}

// A block a matrix: Gram-Schmidt in double, as kernels::orthonormalize has it.
template <int R>
__global__ void orthonormalize_columns(std::size_t rows, float* all, double epsilon) {
  // Of a column that depends on others only rounding is left: less than this fraction of
  // its length counts as nothing.
  constexpr double kNothing = 16 * 0x1p-23;
  float* columns = all + std::size_t{blockIdx.x} * rows * R;
  for (int k = 0; k < R; ++k) {
    float* column = columns + k;
    const double least = k == 0 ? 0 : kNothing * sqrt(dot<R>(rows, column, column));
    // Twice: if columns are close, the first pass leaves mostly rounding.
    for (int pass = 0; pass < 2 && k > 0; ++pass) {
      for (int before = 0; before < k; ++before) {
        const double shared = dot<R>(rows, columns + before, column);
        for (std::size_t row = threadIdx.x; row < rows; row += kThreadsOfAMatrix)
          column[row * R] = float(column[row * R] - shared * columns[row * R + before]);
        __syncthreads();
      }
    }
    const double length = sqrt(dot<R>(rows, column, column));
    const double factor = length > least || isnan(length) ? 1 / (length + epsilon) : 0;
    for (std::size_t row = threadIdx.x; row < rows; row += kThreadsOfAMatrix)
      column[row * R] = float(column[row * R] * factor);
    __syncthreads();
  }
}

// ---- launching

// Calls body(std::integral_constant<int, rank>).
template <class Body>
int with_rank(std::size_t rank, Body body) {
  switch (rank) {
    case 1:
      body(std::integral_constant<int, 1>());
      break;
    case 2:
      body(std::integral_constant<int, 2>());
      break;
    case 3:
      body(std::integral_constant<int, 3>());
      break;
    case 4:
      body(std::integral_constant<int, 4>());
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

inline unsigned blocks_of_rows(std::size_t rows) {
  return unsigned((rows + kRowsOfABlock - 1) / kRowsOfABlock);
}

inline int low_rank_project(LowRankShape shape, const float* m, float* sum,
                            const float* last_p, const float* last_q, const float* q,
                            float* p, void* stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_rank(shape.rank, [&](auto rank) {
    project_rows<rank()><<<blocks_of_rows(shape.rows), dim3(kWarp, kRowsOfABlock), 0,
                           static_cast<cudaStream_t>(stream)>>>(
        shape.rows, shape.columns, m, sum, last_p, last_q, q, p);
  });
}

inline int low_rank_project_back(LowRankShape shape, int parts, const float* m,
                                 const float* p, float* partial, float* q, void* stream) {
  if (shape.columns == 0) return cudaSuccess;
  constexpr unsigned kThreads = 128;
  const auto on = static_cast<cudaStream_t>(stream);
  const std::size_t part = (shape.rows + parts - 1) / parts;
  const dim3 grid(unsigned((shape.columns + kThreads - 1) / kThreads), unsigned(parts));
  return with_rank(shape.rank, [&](auto rank) {
    project_columns<rank()><<<grid, kThreads, 0, on>>>(shape.rows, shape.columns, part, m,
                                                       p, parts == 1 ? q : partial);
    if (parts == 1) return;
    const std::size_t size = shape.columns * shape.rank;
    add_parts<<<unsigned((size + kThreads - 1) / kThreads), kThreads, 0, on>>>(size, parts,
                                                                               partial, q);
  });
}

inline int low_rank_rebuild(LowRankShape shape, float* m, const float* p, const float* q,
                            void* stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_rank(shape.rank, [&](auto rank) {
    rebuild_rows<rank()>
        <<<blocks_of_rows(shape.rows), dim3(kWarp, kRowsOfABlock), 0,
           static_cast<cudaStream_t>(stream)>>>(shape.rows, shape.columns, m, p, q);
  });
}

inline int low_rank_take_back(const float* check, const float* m, float* sum,
                              std::size_t size, void* stream) {
  if (size == 0) return cudaSuccess;
  const auto blocks = unsigned(std::min<std::size_t>((size + 255) / 256, 512));
  take_back_if_lost<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(check, m, sum,
                                                                           size);
  return cudaGetLastError();
}

inline int low_rank_orthonormalize(std::size_t matrices, std::size_t rows, std::size_t rank,
                                   float* columns, double epsilon, void* stream) {
  if (matrices == 0 || rows == 0) return cudaSuccess;
  return with_rank(rank, [&](auto rank) {
    orthonormalize_columns<rank()>
        <<<unsigned(matrices), kThreadsOfAMatrix, 0, static_cast<cudaStream_t>(stream)>>>(
            rows, columns, epsilon);
  });
}

}  // namespace brigade::kernels::cuda
