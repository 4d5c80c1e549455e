#include "kernels/low_rank.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using Floats = std::vector<float>;

// A matrix, its error, and the thin ones; the same for every caller.
struct Problem {
  explicit Problem(LowRankShape shape) : shape(shape) {
    std::mt19937 random(1);
    for (Floats* values : {&m, &error, &qt, &p}) {
      const std::size_t width = values == &p ? shape.rank : shape.columns;
      const std::size_t height = values == &qt ? shape.rank : shape.rows;
      values->resize(width * height);
      for (float& value : *values) value = testing::normal(random);
    }
  }
  LowRankShape shape;
  Floats m, error, qt, p;
};

const std::vector<LowRankShape> kShapes{{1, 1, 1},    {3, 5, 2},     {17, 16, 1},
                                        {40, 20, 2},  {64, 257, 3},  {255, 600, 4},
                                        {7, 1000, 4}, {1030, 33, 2}, {0, 4, 1}};

TEST(LowRank, ProjectAddsTheErrorAndMultiplies) {
  for (const LowRankShape& shape : kShapes) {
    Problem problem(shape);
    Floats m = problem.m, p = problem.p;
    low_rank_kernels().project(shape, m.data(), problem.error.data(), problem.qt.data(),
                               p.data());
    for (std::size_t i = 0; i < shape.rows; ++i) {
      for (std::size_t k = 0; k < shape.rank; ++k) {
        double exact = 0;
        for (std::size_t j = 0; j < shape.columns; ++j) {
          const std::size_t at = i * shape.columns + j;
          ASSERT_EQ(m[at], problem.m[at] + problem.error[at]);
          exact += static_cast<double>(m[at]) * problem.qt[k * shape.columns + j];
        }
        ASSERT_NEAR(p[i * shape.rank + k], exact, 1e-4);
      }
    }
  }
}

TEST(LowRank, ProjectBackMultipliesByTheTransposed) {
  for (const LowRankShape& shape : kShapes) {
    Problem problem(shape);
    Floats qt = problem.qt;
    low_rank_kernels().project_back(shape, problem.m.data(), problem.p.data(), qt.data());
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

TEST(LowRank, RebuildLeavesTheProductAndWhatItLacks) {
  for (const LowRankShape& shape : kShapes) {
    Problem problem(shape);
    Floats m = problem.m, error = problem.error, alone = problem.m;
    low_rank_kernels().rebuild(shape, m.data(), error.data(), problem.p.data(),
                               problem.qt.data());
    low_rank_kernels().rebuild(shape, alone.data(), nullptr, problem.p.data(),
                               problem.qt.data());
    EXPECT_EQ(m, alone);
    for (std::size_t at = 0; at < m.size(); ++at) {
      double exact = 0;
      for (std::size_t k = 0; k < shape.rank; ++k) {
        exact += static_cast<double>(problem.p[at / shape.columns * shape.rank + k]) *
                 problem.qt[k * shape.columns + at % shape.columns];
      }
      ASSERT_NEAR(m[at], exact, 1e-5);
      ASSERT_EQ(error[at], problem.m[at] - m[at]);
    }
  }
}

TEST(LowRank, EveryInstructionSetGivesTheSameBits) {
  for (Isa isa : testing::fast_isas()) {
    for (const LowRankShape& shape : kShapes) {
      Problem one(shape), two(shape);
      for (auto [problem, set] : {std::pair{&one, Isa::portable}, std::pair{&two, isa}}) {
        const LowRankKernels& kernels = low_rank_kernels(set);
        kernels.project(shape, problem->m.data(), problem->error.data(), problem->qt.data(),
                        problem->p.data());
        kernels.project_back(shape, problem->m.data(), problem->p.data(),
                             problem->qt.data());
        kernels.rebuild(shape, problem->m.data(), problem->error.data(), problem->p.data(),
                        problem->qt.data());
      }
      EXPECT_EQ(one.m, two.m) << isa_name(isa);
      EXPECT_EQ(one.error, two.error) << isa_name(isa);
      EXPECT_EQ(one.qt, two.qt) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace brigade::kernels
