// PowerSGD's products, see kernels/low_rank.h. M is rows x columns, P rows x R, Q columns x
// R, all row-major. Sums run in a fixed order, so that every run gives the same bits, but
// not the CPU's. A launch is for many matrices: a step may have hundreds, and a launch
// takes longer than the work on a small one.
#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade::kernels::cuda {

constexpr int kWarp = 32;
constexpr int kRowsOfABlock = 8;  // a warp each

// A launch's arguments, passed by value; a kernel's arguments have 4 kB.
template <class Matrix>
struct Several {
  static constexpr int kMost = 3072 / sizeof(Matrix);
  Matrix at[kMost];
};

// One warp a row: sum = M + (sum - last_P last_Qᵀ); P = sum Q. Where `sum` is null: P = M
// Q. A value of M that is not finite changes P, where all ranks see it, but not `sum`.
template <int R>
__global__ void project_rows(std::size_t rows, std::size_t columns,
                             Several<LowRankMatrix> matrices) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfABlock + threadIdx.y;
  if (row >= rows) return;
  const auto [m, sum, last_p, last_q, p, q] = matrices.at[blockIdx.y];
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

// One thread a column, for the rows of one part: partial[matrix][part] = Mᵀ P of those
// rows; with one part, Q itself. If there is a sum, it replaces M.
template <int R>
__global__ void project_columns(std::size_t rows, std::size_t columns,
                                std::size_t rows_of_a_part, Several<LowRankMatrix> matrices,
                                float* partial) {
  const std::size_t column = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const LowRankMatrix& matrix = matrices.at[blockIdx.z];
  const float* m = matrix.sum ? matrix.sum : matrix.m;
  const float* p = matrix.p;
  const std::size_t begin = std::size_t{blockIdx.y} * rows_of_a_part;
  const std::size_t end = min(rows, begin + rows_of_a_part);
  float total[R] = {};
#pragma unroll 4
  for (std::size_t row = begin; row < end; ++row) {
    const float value = m[row * columns + column];
#pragma unroll
    for (int k = 0; k < R; ++k) total[k] += value * p[row * R + k];
  }
  const std::size_t part = std::size_t{blockIdx.z} * gridDim.y + blockIdx.y;
  float* to = (partial ? partial + part * columns * R : matrix.q) + column * R;
#pragma unroll
  for (int k = 0; k < R; ++k) to[k] = total[k];
}

static __global__ void add_parts(std::size_t size, int parts, const float* partial,
                                 Several<LowRankMatrix> matrices) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= size) return;
  partial += std::size_t{blockIdx.y} * parts * size;
  float total = 0;
  for (int part = 0; part < parts; ++part) total += partial[std::size_t(part) * size + at];
  matrices.at[blockIdx.y].q[at] = total;
}

// M = P Qᵀ. For a lost matrix, `sum` becomes what it was before M was added; values that
// are not finite become zero.
template <int R>
__global__ void rebuild_rows(std::size_t rows, std::size_t columns,
                             Several<LowRankMatrix> matrices, const float* lost) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfABlock + threadIdx.y;
  if (row >= rows) return;
  const LowRankMatrix& matrix = matrices.at[blockIdx.y];
  const bool takes_back = lost && matrix.sum && lost[blockIdx.y] != 0;
  float left[R];
#pragma unroll
  for (int k = 0; k < R; ++k) left[k] = matrix.p[row * R + k];
#pragma unroll 4
  for (std::size_t column = threadIdx.x; column < columns; column += kWarp) {
    const std::size_t at = row * columns + column;
    if (takes_back) {
      const float added = matrix.m[at], sum = matrix.sum[at];
      const float value = isfinite(added) ? sum - added : sum;
      matrix.sum[at] = isfinite(value) ? value : 0;
    }
    float value = 0;
#pragma unroll
    for (int k = 0; k < R; ++k) value += left[k] * matrix.q[column * R + k];
    matrix.m[at] = value;
  }
}

constexpr int kThreadsOfASettling = 256;
constexpr int kBlocksOfASettling = 8;

// Each block reads the whole of `check`, which is small, and copies its share.
static __global__ void settle(std::size_t p_size, std::size_t q_size,
                              Several<LowRankSettling> matrices, float* lost) {
  const LowRankSettling& matrix = matrices.at[blockIdx.y];
  int found = 0;
  for (std::size_t at = threadIdx.x; at < matrix.check_size; at += kThreadsOfASettling)
    found |= !isfinite(matrix.check[at]);
  found = __syncthreads_or(found);
  const std::size_t first = std::size_t{blockIdx.x} * kThreadsOfASettling + threadIdx.x;
  if (first == 0) lost[blockIdx.y] = found ? 1 : 0;
  constexpr std::size_t kStep = std::size_t{kBlocksOfASettling} * kThreadsOfASettling;
  for (std::size_t at = first; matrix.kept_p && at < p_size; at += kStep)
    matrix.kept_p[at] = found ? 0 : matrix.p[at];
  for (std::size_t at = first; at < q_size; at += kStep) {
    if (matrix.kept_q) matrix.kept_q[at] = found ? 0 : matrix.q[at];
    if (matrix.next)
      matrix.next[at] = !found ? matrix.q[at] : matrix.last ? matrix.last[at] : 0;
  }
}

constexpr int kThreadsOfAMatrix = 512;

// The sum of a[i] b[i] over a block's threads, for all of them; elements are R apart.
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
  __syncthreads();  // before the next call writes there
  return total;
}

// The columns of `from`, or of `spare` where `from` has only zeros.
template <int R>
__device__ void revive(std::size_t rows, const LowRankColumns& of) {
  for (int k = 0; k < R; ++k) {
    int found = 0;
    for (std::size_t row = threadIdx.x; row < rows; row += kThreadsOfAMatrix)
      found |= of.from[row * R + k] != 0;
    const float* from = __syncthreads_or(found) ? of.from : of.spare;
    for (std::size_t row = threadIdx.x; row < rows; row += kThreadsOfAMatrix)
      of.columns[row * R + k] = from[row * R + k];
  }
  __syncthreads();
}

// One block a matrix: Gram-Schmidt in double, as in kernels::orthonormalize.
template <int R>
__global__ void orthonormalize_columns(std::size_t rows, Several<LowRankColumns> matrices,
                                       double epsilon) {
  // Only rounding is left of a column that depends on others: a remainder below this
  // fraction of its length counts as zero.
  constexpr double kNothing = 16 * 0x1p-23;
  const LowRankColumns& matrix = matrices.at[blockIdx.x];
  if (matrix.from) revive<R>(rows, matrix);
  float* columns = matrix.columns;
  for (int k = 0; k < R; ++k) {
    float* column = columns + k;
    const double least = k == 0 ? 0 : kNothing * sqrt(dot<R>(rows, column, column));
    // This runs twice: if columns are close, the first pass leaves mostly rounding.
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

// Calls launch(some, index of the first, count), with as many at a time as a launch takes.
template <class Matrix, class Launch>
int launch_for(const Matrix* matrices, int count, Launch launch) {
  for (int first = 0; first < count; first += Several<Matrix>::kMost) {
    Several<Matrix> some = {};
    const int length = std::min(count - first, Several<Matrix>::kMost);
    std::copy_n(matrices + first, length, some.at);
    if (const int error = launch(some, first, unsigned(length))) return error;
  }
  return cudaSuccess;
}

inline unsigned blocks_of_rows(std::size_t rows) {
  return unsigned((rows + kRowsOfABlock - 1) / kRowsOfABlock);
}

inline int low_rank_project(LowRankShape shape, const LowRankMatrix* matrices, int count,
                            void* stream) {
  if (shape.rows == 0) return cudaSuccess;
  return launch_for(matrices, count, [&](const auto& some, int, unsigned length) {
    return with_rank(shape.rank, [&](auto rank) {
      project_rows<rank()>
          <<<dim3(blocks_of_rows(shape.rows), length), dim3(kWarp, kRowsOfABlock), 0,
             static_cast<cudaStream_t>(stream)>>>(shape.rows, shape.columns, some);
    });
  });
}

inline int low_rank_project_back(LowRankShape shape, const LowRankMatrix* matrices,
                                 int count, int parts, float* partial, void* stream) {
  if (shape.columns == 0) return cudaSuccess;
  constexpr unsigned kThreads = 128;
  const auto on = static_cast<cudaStream_t>(stream);
  const std::size_t size = shape.columns * shape.rank;
  const std::size_t rows = (shape.rows + parts - 1) / parts;
  return launch_for(matrices, count, [&](const auto& some, int first, unsigned length) {
    return with_rank(shape.rank, [&](auto rank) {
      const dim3 grid(unsigned((shape.columns + kThreads - 1) / kThreads), unsigned(parts),
                      length);
      float* sums = parts == 1 ? nullptr : partial + std::size_t(first) * parts * size;
      project_columns<rank()>
          <<<grid, kThreads, 0, on>>>(shape.rows, shape.columns, rows, some, sums);
      if (parts == 1) return;
      const dim3 adding(unsigned((size + kThreads - 1) / kThreads), length);
      add_parts<<<adding, kThreads, 0, on>>>(size, parts, sums, some);
    });
  });
}

inline int low_rank_settle(LowRankShape shape, const LowRankSettling* matrices, int count,
                           float* lost, void* stream) {
  return launch_for(matrices, count, [&](const auto& some, int first, unsigned length) {
    settle<<<dim3(kBlocksOfASettling, length), kThreadsOfASettling, 0,
             static_cast<cudaStream_t>(stream)>>>(
        shape.rows * shape.rank, shape.columns * shape.rank, some, lost + first);
    return int(cudaGetLastError());
  });
}

inline int low_rank_rebuild(LowRankShape shape, const LowRankMatrix* matrices, int count,
                            const float* lost, void* stream) {
  if (shape.rows == 0) return cudaSuccess;
  return launch_for(matrices, count, [&](const auto& some, int first, unsigned length) {
    return with_rank(shape.rank, [&](auto rank) {
      rebuild_rows<rank()>
          <<<dim3(blocks_of_rows(shape.rows), length), dim3(kWarp, kRowsOfABlock), 0,
             static_cast<cudaStream_t>(stream)>>>(shape.rows, shape.columns, some,
                                                  lost ? lost + first : nullptr);
    });
  });
}

inline int low_rank_orthonormalize(std::size_t rows, std::size_t rank,
                                   const LowRankColumns* matrices, int count,
                                   double epsilon, void* stream) {
  if (rows == 0) return cudaSuccess;
  return launch_for(matrices, count, [&](const auto& some, int, unsigned length) {
    return with_rank(rank, [&](auto constant) {
      orthonormalize_columns<constant()>
          <<<length, kThreadsOfAMatrix, 0, static_cast<cudaStream_t>(stream)>>>(rows, some,
                                                                                epsilon);
    });
  });
}

}  // namespace brigade::kernels::cuda
