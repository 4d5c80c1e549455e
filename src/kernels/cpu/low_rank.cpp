#include "kernels/low_rank.h"

#include <algorithm>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kRowsAtOnce = 4;

// 16 floats, which compilers split for each instruction set.
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

BRIGADE_BODY void load(const float* from, Lanes& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}
BRIGADE_BODY void store(const Lanes& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// Element j of a row of P Qᵀ, or 16 of them from j on.
template <std::size_t kRank, class Value>
BRIGADE_BODY void product_at(const float* p, const float* qt, std::size_t stride,
                             std::size_t j, Value& value) {
  std::memcpy(&value, qt + j, sizeof value);
  value *= p[0];
  for (std::size_t k = 1; k < kRank; ++k) {
    Value next;
    std::memcpy(&next, qt + k * stride + j, sizeof next);
    value += next * p[k];
  }
}

// The addend of M before the product: nothing, the sum, the sum less P Qᵀ.
enum class Sum { none, plain, less_last };

template <std::size_t kRank>
struct Bodies {
  template <Sum kSum, class Value>
  BRIGADE_BODY static void value_at(const float* m, float* sum, const float* last_p,
                                    const float* last_qt, std::size_t columns,
                                    std::size_t j, Value& value) {
    std::memcpy(&value, m + j, sizeof value);
    if constexpr (kSum == Sum::none) return;
    Value error;
    std::memcpy(&error, sum + j, sizeof error);
    if constexpr (kSum == Sum::less_last) {
      Value last;
      product_at<kRank>(last_p, last_qt, columns, j, last);
      error -= last;
    }
    value += error;
    std::memcpy(sum + j, &value, sizeof value);
  }

  template <Sum kSum>
  BRIGADE_BODY static void project(LowRankShape shape, const float* m, float* sum,
                                   const float* last_p, const float* last_qt,
                                   const float* qt, float* p) {
    const std::size_t columns = shape.columns, whole = columns - columns % kLanes;
    for (std::size_t row = 0; row < shape.rows; ++row) {
      float last[kRank];
      if constexpr (kSum == Sum::less_last) std::copy_n(last_p, kRank, last);
      Lanes lanes[kRank] = {};
      for (std::size_t j = 0; j < whole; j += kLanes) {
        Lanes value;
        value_at<kSum>(m, sum, last, last_qt, columns, j, value);
        for (std::size_t k = 0; k < kRank; ++k) {
          Lanes q;
          load(qt + k * columns + j, q);
          lanes[k] += value * q;
        }
      }
      float ends[kRank][kLanes];
      for (std::size_t k = 0; k < kRank; ++k) store(lanes[k], ends[k]);
      for (std::size_t j = whole; j < columns; ++j) {
        float value;
        value_at<kSum>(m, sum, last, last_qt, columns, j, value);
        for (std::size_t k = 0; k < kRank; ++k) {
          ends[k][j % kLanes] += value * qt[k * columns + j];
        }
      }
      for (std::size_t k = 0; k < kRank; ++k) {
        float total = 0;
        for (float lane : ends[k]) total += lane;
        p[k] = total;
      }
      p += kRank;
      m += columns;
      if constexpr (kSum != Sum::none) sum += columns;
      if constexpr (kSum == Sum::less_last) last_p += kRank;
    }
  }

  // QT += the products of kRows rows.
  template <std::size_t kRows>
  BRIGADE_BODY static void add_rows(std::size_t columns, std::size_t stride, const float* m,
                                    const float* p, float* qt) {
    float factors[kRows * kRank];
    std::copy_n(p, kRows * kRank, factors);
    std::size_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      add_rows_at<kRows, Lanes>(stride, m + j, factors, qt + j);
    }
    for (; j < columns; ++j) add_rows_at<kRows, float>(stride, m + j, factors, qt + j);
  }
  template <std::size_t kRows, class Value>
  BRIGADE_BODY static void add_rows_at(std::size_t stride, const float* m,
                                       const float* factors, float* qt) {
    Value values[kRows];
    for (std::size_t i = 0; i < kRows; ++i) {
      std::memcpy(&values[i], m + i * stride, sizeof(Value));
    }
    for (std::size_t k = 0; k < kRank; ++k) {
      Value total;
      std::memcpy(&total, qt + k * stride, sizeof total);
      for (std::size_t i = 0; i < kRows; ++i) total += values[i] * factors[i * kRank + k];
      std::memcpy(qt + k * stride, &total, sizeof total);
    }
  }

  BRIGADE_BODY static void project_back(LowRankShape shape, std::size_t stride,
                                        const float* m, const float* p, float* qt) {
    for (std::size_t k = 0; k < kRank; ++k) {
      std::fill(qt + k * stride, qt + k * stride + shape.columns, 0.0f);
    }
    std::size_t row = 0;
    for (; row + kRowsAtOnce <= shape.rows; row += kRowsAtOnce) {
      add_rows<kRowsAtOnce>(shape.columns, stride, m + row * stride, p + row * kRank, qt);
    }
    for (; row < shape.rows; ++row) {
      add_rows<1>(shape.columns, stride, m + row * stride, p + row * kRank, qt);
    }
  }

  BRIGADE_BODY static void rebuild(LowRankShape shape, float* m, const float* p,
                                   const float* qt) {
    const std::size_t columns = shape.columns, whole = columns - columns % kLanes;
    for (std::size_t row = 0; row < shape.rows; ++row) {
      float factors[kRank];
      std::copy_n(p, kRank, factors);
      for (std::size_t j = 0; j < whole; j += kLanes) {
        Lanes value;
        product_at<kRank>(factors, qt, columns, j, value);
        store(value, m + j);
      }
      for (std::size_t j = whole; j < columns; ++j) {
        product_at<kRank>(factors, qt, columns, j, m[j]);
      }
      p += kRank;
      m += columns;
    }
  }
};

// ---- instruction sets -------------------------------------------------------------------

#define BRIGADE_LOW_RANK_VARIANT(Name, Target)                                            \
  template <std::size_t kRank>                                                            \
  struct Name {                                                                           \
    using Body = Bodies<kRank>;                                                           \
    Target static void project(LowRankShape shape, const float* m, const float* qt,       \
                               float* p) noexcept {                                       \
      Body::template project<Sum::none>(shape, m, nullptr, nullptr, nullptr, qt, p);      \
    }                                                                                     \
    Target static void add(LowRankShape shape, const float* m, float* sum,                \
                           const float* qt, float* p) noexcept {                          \
      Body::template project<Sum::plain>(shape, m, sum, nullptr, nullptr, qt, p);         \
    }                                                                                     \
    Target static void add_less(LowRankShape shape, const float* m, float* sum,           \
                                const float* last_p, const float* last_qt,                \
                                const float* qt, float* p) noexcept {                     \
      Body::template project<Sum::less_last>(shape, m, sum, last_p, last_qt, qt, p);      \
    }                                                                                     \
    Target static void project_back(LowRankShape shape, std::size_t stride,               \
                                    const float* m, const float* p, float* qt) noexcept { \
      Body::project_back(shape, stride, m, p, qt);                                        \
    }                                                                                     \
    Target static void rebuild(LowRankShape shape, float* m, const float* p,              \
                               const float* qt) noexcept {                                \
      Body::rebuild(shape, m, p, qt);                                                     \
    }                                                                                     \
  }
BRIGADE_LOW_RANK_VARIANT(Portable, );
BRIGADE_LOW_RANK_VARIANT(Avx2, BRIGADE_AVX2);
BRIGADE_LOW_RANK_VARIANT(Avx512, BRIGADE_AVX512);
#undef BRIGADE_LOW_RANK_VARIANT

// Calls body(Variant<rank>()).
template <template <std::size_t> class Variant, class Body>
void with_rank(std::size_t rank, Body body) noexcept {
  static_assert(kMostRank == 4);
  if (rank == 1) return body(Variant<1>());
  if (rank == 2) return body(Variant<2>());
  if (rank == 3) return body(Variant<3>());
  body(Variant<4>());
}

template <template <std::size_t> class Variant>
constexpr LowRankKernels kKernels{
    .project =
        [](LowRankShape shape, const float* m, const float* qt, float* p) noexcept {
          with_rank<Variant>(shape.rank,
                             [&](auto variant) { variant.project(shape, m, qt, p); });
        },
    .feed_back =
        [](LowRankShape shape, const float* m, float* sum, const float* last_p,
           const float* last_qt, const float* qt, float* p) noexcept {
          with_rank<Variant>(shape.rank, [&](auto variant) {
            if (last_p == nullptr) return variant.add(shape, m, sum, qt, p);
            variant.add_less(shape, m, sum, last_p, last_qt, qt, p);
          });
        },
    .project_back =
        [](LowRankShape shape, std::size_t stride, const float* m, const float* p,
           float* qt) noexcept {
          with_rank<Variant>(shape.rank, [&](auto variant) {
            variant.project_back(shape, stride, m, p, qt);
          });
        },
    .rebuild =
        [](LowRankShape shape, float* m, const float* p, const float* qt) noexcept {
          with_rank<Variant>(shape.rank,
                             [&](auto variant) { variant.rebuild(shape, m, p, qt); });
        }};

}  // namespace

const LowRankKernels& low_rank_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Avx512>;
  if (isa == Isa::avx2) return kKernels<Avx2>;
  return kKernels<Portable>;
}

}  // namespace brigade::kernels
