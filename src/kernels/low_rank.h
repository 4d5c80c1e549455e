// Matrices times tall, thin ones: what PowerSGD does all day. M is rows x columns, P is
// rows x rank, QT is rank x columns (Q turned, so that its columns lie in memory order),
// all row-major. Each goes over M once. All variants give the same bits: sums run over 16
// lanes, column j in lane j % 16, and the lanes are added up in order.
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
  // M += error, unless that is null; P = M Q.
  void (*project)(LowRankShape shape, float* m, const float* error, const float* qt,
                  float* p) noexcept;
  // Q = Mᵀ P.
  void (*project_back)(LowRankShape shape, const float* m, const float* p,
                       float* qt) noexcept;
  // error = M - P Qᵀ, unless that is null; M = P Qᵀ.
  void (*rebuild)(LowRankShape shape, float* m, float* error, const float* p,
                  const float* qt) noexcept;
};

// REQUIRES: isa_runs(isa). None of the arguments overlap.
const LowRankKernels& low_rank_kernels(Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
