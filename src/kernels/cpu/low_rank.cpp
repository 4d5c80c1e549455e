#include "kernels/low_rank.h"

#include <algorithm>

#include "kernels/cpu/piece.h"

namespace brigade::kernels {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kRowsAtOnce = 4;

// ---- one piece of a row
// ----------------------------------------------------------------------------

BRIGADE_BODY void add_body(float* __restrict x, const float* __restrict y,
                           std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) x[j] += y[j];
}
BRIGADE_BODY void dot_body(const float* __restrict x, const float* __restrict y,
                           std::size_t size, float* __restrict lanes) {
  for (std::size_t j = 0; j < size; ++j) lanes[j % kLanes] += x[j] * y[j];
}
// sum += a[0] x[0] + a[1] x[1] …, for kRowsAtOnce rows of x.
BRIGADE_BODY void add_rows_body(const float* __restrict x, std::size_t stride,
                                const float* __restrict a, float* __restrict sum,
                                std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) {
    float total = sum[j] + a[0] * x[j];
    total += a[1] * x[stride + j];
    total += a[2] * x[2 * stride + j];
    sum[j] = total + a[3] * x[3 * stride + j];
  }
}
BRIGADE_BODY void add_row_body(const float* __restrict x, float a, float* __restrict sum,
                               std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) sum[j] += a * x[j];
}
BRIGADE_BODY void set_row_body(const float* __restrict x, float a, float* __restrict to,
                               std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) to[j] = a * x[j];
}
// error = m - rebuilt; m = rebuilt.
BRIGADE_BODY void exchange_body(float* __restrict m, float* __restrict error,
                                const float* __restrict rebuilt, std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) {
    error[j] = m[j] - rebuilt[j];
    m[j] = rebuilt[j];
  }
}

#define BRIGADE_LOW_RANK_VARIANT(Name, Target)                                      \
  struct Name {                                                                     \
    Target static void add(float* x, const float* y, std::size_t size) noexcept {   \
      add_body(x, y, size);                                                         \
    }                                                                               \
    Target static void add_rows(const float* x, std::size_t stride, const float* a, \
                                float* sum, std::size_t size) noexcept {            \
      add_rows_body(x, stride, a, sum, size);                                       \
    }                                                                               \
    Target static void add_row(const float* x, float a, float* sum,                 \
                               std::size_t size) noexcept {                         \
      add_row_body(x, a, sum, size);                                                \
    }                                                                               \
    Target static void set_row(const float* x, float a, float* to,                  \
                               std::size_t size) noexcept {                         \
      set_row_body(x, a, to, size);                                                 \
    }                                                                               \
    Target static void exchange(float* m, float* error, const float* rebuilt,       \
                                std::size_t size) noexcept {                        \
      exchange_body(m, error, rebuilt, size);                                       \
    }                                                                               \
    static void dot(const float* x, const float* y, std::size_t size,               \
                    float* lanes) noexcept;                                         \
  }
BRIGADE_LOW_RANK_VARIANT(Portable, );
BRIGADE_LOW_RANK_VARIANT(Avx2, BRIGADE_AVX2);
BRIGADE_LOW_RANK_VARIANT(Avx512, BRIGADE_AVX512);
#undef BRIGADE_LOW_RANK_VARIANT

void Portable::dot(const float* x, const float* y, std::size_t size,
                   float* lanes) noexcept {
  dot_body(x, y, size, lanes);
}
#if defined(__x86_64__)
// Compilers keep the lanes in memory; these keep them in registers.
BRIGADE_AVX2 void Avx2::dot(const float* x, const float* y, std::size_t size,
                            float* lanes) noexcept {
  __m256 low = _mm256_loadu_ps(lanes), high = _mm256_loadu_ps(lanes + 8);
  std::size_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(x + j), _mm256_loadu_ps(y + j)));
    high = _mm256_add_ps(
        high, _mm256_mul_ps(_mm256_loadu_ps(x + j + 8), _mm256_loadu_ps(y + j + 8)));
  }
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + 8, high);
  dot_body(x + j, y + j, size - j, lanes);
}
BRIGADE_AVX512 void Avx512::dot(const float* x, const float* y, std::size_t size,
                                float* lanes) noexcept {
  __m512 sum = _mm512_loadu_ps(lanes);
  std::size_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(x + j), _mm512_loadu_ps(y + j)));
  }
  _mm512_storeu_ps(lanes, sum);
  dot_body(x + j, y + j, size - j, lanes);
}
#else
void Avx2::dot(const float* x, const float* y, std::size_t size, float* lanes) noexcept {
  dot_body(x, y, size, lanes);
}
void Avx512::dot(const float* x, const float* y, std::size_t size, float* lanes) noexcept {
  dot_body(x, y, size, lanes);
}
#endif

// ---- whole matrices
// ----------------------------------------------------------------------------

// body(first column, columns) for each piece of a row.
template <class Body>
BRIGADE_BODY void for_pieces(std::size_t columns, Body body) {
  for (std::size_t at = 0; at < columns; at += kPiece) {
    body(at, std::min(kPiece, columns - at));
  }
}

template <class Variant>
void project(LowRankShape shape, float* m, const float* error, const float* qt,
             float* p) noexcept {
  const std::size_t columns = shape.columns;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    float lanes[kMostRank][kLanes] = {};
    for_pieces(columns, [&](std::size_t at, std::size_t size) {
      float* piece = m + row * columns + at;
      if (error) Variant::add(piece, error + row * columns + at, size);
      for (std::size_t k = 0; k < shape.rank; ++k) {
        Variant::dot(piece, qt + k * columns + at, size, lanes[k]);
      }
    });
    for (std::size_t k = 0; k < shape.rank; ++k) {
      float sum = 0;
      for (float lane : lanes[k]) sum += lane;
      p[row * shape.rank + k] = sum;
    }
  }
}

template <class Variant>
void project_back(LowRankShape shape, const float* m, const float* p, float* qt) noexcept {
  const auto [rows, columns, rank] = shape;
  std::fill(qt, qt + rank * columns, 0.0f);
  std::size_t row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
    for_pieces(columns, [&, rows = row](std::size_t at, std::size_t size) {
      for (std::size_t k = 0; k < shape.rank; ++k) {
        float a[kRowsAtOnce];
        for (std::size_t i = 0; i < kRowsAtOnce; ++i) a[i] = p[(rows + i) * shape.rank + k];
        Variant::add_rows(m + rows * shape.columns + at, shape.columns, a,
                          qt + k * shape.columns + at, size);
      }
    });
  }
  for (; row < rows; ++row) {
    for (std::size_t k = 0; k < rank; ++k) {
      Variant::add_row(m + row * columns, p[row * rank + k], qt + k * columns, columns);
    }
  }
}

template <class Variant>
void rebuild(LowRankShape shape, float* m, float* error, const float* p,
             const float* qt) noexcept {
  const std::size_t columns = shape.columns;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const float* a = p + row * shape.rank;
    for_pieces(columns, [&](std::size_t at, std::size_t size) {
      alignas(64) float rebuilt[kPiece];
      Variant::set_row(qt + at, a[0], rebuilt, size);
      for (std::size_t k = 1; k < shape.rank; ++k) {
        Variant::add_row(qt + k * columns + at, a[k], rebuilt, size);
      }
      float* piece = m + row * columns + at;
      if (error) {
        Variant::exchange(piece, error + row * columns + at, rebuilt, size);
      } else {
        std::copy(rebuilt, rebuilt + size, piece);
      }
    });
  }
}

template <class Variant>
constexpr LowRankKernels kKernels{project<Variant>, project_back<Variant>,
                                  rebuild<Variant>};

}  // namespace

const LowRankKernels& low_rank_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Avx512>;
  if (isa == Isa::avx2) return kKernels<Avx2>;
  return kKernels<Portable>;
}

}  // namespace brigade::kernels
