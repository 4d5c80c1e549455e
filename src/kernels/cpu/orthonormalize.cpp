#include <cmath>

#include "kernels/low_rank.h"

namespace brigade::kernels {
namespace {

constexpr std::size_t kLanes = 8;
// Only rounding is left of a column that depends on another. A remainder below this
// fraction of its length counts as zero.
constexpr double kNothing = 16 * 0x1p-23;

// The sum of a[i] b[i], in a fixed order; elements are `rank` apart.
double dot(std::size_t rows, std::size_t rank, const float* a, const float* b) {
  double lanes[kLanes] = {};
  std::size_t row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] += static_cast<double>(a[(row + i) * rank]) * b[(row + i) * rank];
    }
  }
  for (std::size_t i = 0; row + i < rows; ++i) {
    lanes[i] += static_cast<double>(a[(row + i) * rank]) * b[(row + i) * rank];
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// In double, because the square of 1e30 exceeds a float.
double norm(std::size_t rows, std::size_t rank, const float* column) {
  return std::sqrt(dot(rows, rank, column, column));
}

void scale(std::size_t rows, std::size_t rank, float* column, double least,
           double epsilon) {
  const double length = norm(rows, rank, column);
  const double factor = length > least ? 1 / (length + epsilon) : 0;
  for (std::size_t row = 0; row < rows; ++row) {
    column[row * rank] = static_cast<float>(column[row * rank] * factor);
  }
}

}  // namespace

void orthonormalize(std::size_t rows, std::size_t rank, float* columns,
                    double epsilon) noexcept {
  if (rank == 1) return scale(rows, 1, columns, 0, epsilon);
  float *first = columns, *second = columns + 1;
  const double least = kNothing * norm(rows, rank, second);
  scale(rows, rank, first, 0, epsilon);
  // This runs twice: if the columns are close, the first pass leaves mostly rounding.
  for (int pass = 0; pass < 2; ++pass) {
    const double shared = dot(rows, rank, first, second);
    for (std::size_t row = 0; row < rows; ++row) {
      second[row * rank] =
          static_cast<float>(second[row * rank] - shared * first[row * rank]);
    }
  }
  scale(rows, rank, second, least, epsilon);
}

}  // namespace brigade::kernels
