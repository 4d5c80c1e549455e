// Matrices times tall, thin ones: what PowerSGD does all day. M is rows x columns, P is
// rows x rank, QT is rank x columns (Q turned, so that its columns lie in memory order),
// all row-major. Each goes over M once. All variants give the same bits: sums over columns
// run over 16 lanes, column j in lane j % 16, and the lanes are added up in order; sums
// over rows run in order.
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
  // Q = Mᵀ P. Rows of M and of QT begin `stride` apart: M may be a range of columns.
  void (*project_back)(LowRankShape shape, std::size_t stride, const float* m,
                       const float* p, float* qt) noexcept;
  // M = P Qᵀ.
  void (*rebuild)(LowRankShape shape, float* m, const float* p, const float* qt) noexcept;
};

// REQUIRES: isa_runs(isa). None of the arguments overlap.
const LowRankKernels& low_rank_kernels(Isa isa = isa_best()) noexcept;

// The columns of a row-major rows x rank matrix, rank 1 or 2, become orthonormal, by
// Gram-Schmidt in double. One that is zero, or but for rounding depends on the one before
// it, becomes zero; what is not finite becomes NaN. Lengths are divided by norm + epsilon.
void orthonormalize(std::size_t rows, std::size_t rank, float* columns,
                    double epsilon) noexcept;

}  // namespace brigade::kernels
