// Products of a matrix and a thin one, which are most of PowerSGD's work. M is rows x
// columns, P is rows x rank, QT is rank x columns (Q transposed, so that Q's columns are
// contiguous), all row-major. Each function reads M once. All variants give the same bits:
// sums over columns run in 16 lanes, column j in lane j % 16, and the lanes are summed in
// order; sums over rows run in order.
#pragma once
#include <cstddef>

#include "kernels/isa.h"

namespace brigade::kernels {

inline constexpr std::size_t kMostRank = 4;

struct LowRankShape {
  std::size_t rows, columns;
  std::size_t rank;  // 1 … kMostRank
};

struct LowRankKernels {
  // P = M Q.
  void (*project)(LowRankShape shape, const float* m, const float* qt, float* p) noexcept;
  // sum = M + (sum - last_P last_Qᵀ); P = sum Q. Where last_p is null: sum = M + sum.
  void (*feed_back)(LowRankShape shape, const float* m, float* sum, const float* last_p,
                    const float* last_qt, const float* qt, float* p) noexcept;
  // Q = Mᵀ P. Rows of M and of QT are `stride` apart, so M may be a range of columns.
  void (*project_back)(LowRankShape shape, std::size_t stride, const float* m,
                       const float* p, float* qt) noexcept;
  // M = P Qᵀ.
  void (*rebuild)(LowRankShape shape, float* m, const float* p, const float* qt) noexcept;
};

// REQUIRES: isa_runs(isa). None of the arguments overlap.
const LowRankKernels& low_rank_kernels(Isa isa = isa_best()) noexcept;

// Makes the columns of a row-major rows x rank matrix orthonormal, by Gram-Schmidt in
// double; rank is 1 or 2. A column that is zero, or depends on the previous one up to
// rounding, becomes zero. A column with a value that is not finite becomes NaN. Columns are
// divided by norm + epsilon.
void orthonormalize(std::size_t rows, std::size_t rank, float* columns,
                    double epsilon) noexcept;

}  // namespace brigade::kernels
