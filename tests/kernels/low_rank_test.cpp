#include "kernels/low_rank.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using Floats = std::vector<float>;

// A matrix, the rest of the last one, their product, and the thin matrices; the same in
// every call.
struct Problem {
  explicit Problem(LowRankShape shape) : shape(shape) {
    std::mt19937 random(1);
    for (Floats* values : {&m, &sum, &qt, &p, &last_qt, &last_p}) {
      const bool is_p = values == &p || values == &last_p;
      const bool is_qt = values == &qt || values == &last_qt;
      values->resize((is_p ? shape.rank : shape.columns) *
                     (is_qt ? shape.rank : shape.rows));
      for (float& value : *values) value = testing::normal(random);
    }
  }
  LowRankShape shape;
  Floats m, sum, qt, p, last_qt, last_p;
};

const std::vector<LowRankShape> kShapes{{1, 1, 1},    {3, 5, 2},     {17, 16, 1},
                                        {40, 20, 2},  {64, 257, 3},  {255, 600, 4},
                                        {7, 1000, 4}, {1030, 33, 2}, {0, 4, 1}};

// Element `at` of P Qᵀ, added in the kernels' order.
float product_at(const LowRankShape& shape, const Floats& p, const Floats& qt,
                 std::size_t at) {
  const float* row = p.data() + at / shape.columns * shape.rank;
  const float* column = qt.data() + at % shape.columns;
  float value = column[0] * row[0];
  for (std::size_t k = 1; k < shape.rank; ++k) value += column[k * shape.columns] * row[k];
  return value;
}

void expect_product(const LowRankShape& shape, const Floats& m, const Floats& qt,
                    const Floats& p) {
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t k = 0; k < shape.rank; ++k) {
      double exact = 0;
      for (std::size_t j = 0; j < shape.columns; ++j) {
        exact += static_cast<double>(m[i * shape.columns + j]) * qt[k * shape.columns + j];
      }
      ASSERT_NEAR(p[i * shape.rank + k], exact, 1e-4);
    }
  }
}

TEST(LowRank, ProjectMultiplies) {
  for (const LowRankShape& shape : kShapes) {
    const Problem problem(shape);
    Floats p = problem.p;
    low_rank_kernels().project(shape, problem.m.data(), problem.qt.data(), p.data());
    expect_product(shape, problem.m, problem.qt, p);
  }
}

TEST(LowRank, FeedBackAddsWhatTheLastProductLackedAndMultiplies) {
  for (const LowRankShape& shape : kShapes) {
    const Problem problem(shape);
    for (bool has_last : {false, true}) {
      Floats sum = problem.sum, p = problem.p;
      low_rank_kernels().feed_back(shape, problem.m.data(), sum.data(),
                                   has_last ? problem.last_p.data() : nullptr,
                                   problem.last_qt.data(), problem.qt.data(), p.data());
      for (std::size_t at = 0; at < sum.size(); ++at) {
        const float lacked = has_last ? problem.sum[at] - product_at(shape, problem.last_p,
                                                                     problem.last_qt, at)
                                      : problem.sum[at];
        ASSERT_EQ(sum[at], problem.m[at] + lacked);
      }
      expect_product(shape, sum, problem.qt, p);
    }
  }
}

TEST(LowRank, ProjectBackMultipliesByTheTransposed) {
  for (const LowRankShape& shape : kShapes) {
    Problem problem(shape);
    Floats qt = problem.qt;
    low_rank_kernels().project_back(shape, shape.columns, problem.m.data(),
                                    problem.p.data(), qt.data());
    for (std::size_t j = 0; j < shape.columns; ++j) {
      for (std::size_t k = 0; k < shape.rank; ++k) {
        double exact = 0;
        for (std::size_t i = 0; i < shape.rows; ++i) {
          exact += static_cast<double>(problem.m[i * shape.columns + j]) *
                   problem.p[i * shape.rank + k];
        }
        ASSERT_NEAR(qt[k * shape.columns + j], exact, 1e-3);
      }
    }
  }
}

TEST(LowRank, ProjectBackOfRangesOfColumnsGivesTheBitsOfTheWhole) {
  for (const LowRankShape& shape : kShapes) {
    const Problem problem(shape);
    Floats whole = problem.qt, parts = problem.qt;
    const auto& kernels = low_rank_kernels();
    kernels.project_back(shape, shape.columns, problem.m.data(), problem.p.data(),
                         whole.data());
    const std::size_t cut = shape.columns / 3;
    for (auto [begin, end] : {std::pair{std::size_t{0}, cut}, {cut, shape.columns}}) {
      kernels.project_back({shape.rows, end - begin, shape.rank}, shape.columns,
                           problem.m.data() + begin, problem.p.data(),
                           parts.data() + begin);
    }
    EXPECT_EQ(whole, parts);
  }
}

TEST(LowRank, RebuildLeavesTheProduct) {
  for (const LowRankShape& shape : kShapes) {
    const Problem problem(shape);
    Floats m = problem.m;
    low_rank_kernels().rebuild(shape, m.data(), problem.p.data(), problem.qt.data());
    for (std::size_t at = 0; at < m.size(); ++at) {
      ASSERT_EQ(m[at], product_at(shape, problem.p, problem.qt, at));
    }
  }
}

TEST(LowRank, EveryInstructionSetGivesTheSameBits) {
  for (Isa isa : testing::fast_isas()) {
    for (const LowRankShape& shape : kShapes) {
      Problem one(shape), two(shape);
      for (auto [problem, set] : {std::pair{&one, Isa::portable}, std::pair{&two, isa}}) {
        const LowRankKernels& kernels = low_rank_kernels(set);
        kernels.project(shape, problem->m.data(), problem->last_qt.data(),
                        problem->last_p.data());
        kernels.feed_back(shape, problem->m.data(), problem->sum.data(),
                          problem->last_p.data(), problem->last_qt.data(),
                          problem->qt.data(), problem->p.data());
        kernels.project_back(shape, shape.columns, problem->sum.data(), problem->p.data(),
                             problem->qt.data());
        kernels.rebuild(shape, problem->m.data(), problem->p.data(), problem->qt.data());
      }
      EXPECT_EQ(one.m, two.m) << isa_name(isa);
      EXPECT_EQ(one.sum, two.sum) << isa_name(isa);
      EXPECT_EQ(one.qt, two.qt) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace brigade::kernels
