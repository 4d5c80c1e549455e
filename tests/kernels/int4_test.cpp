#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/int4_block.h"
#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using testing::make;
using testing::Pattern;
using testing::patterns;
using testing::same;
using Floats = std::vector<float>;

struct Int4Coded {
  Floats steps, residual, decoded, added;
  std::vector<std::uint8_t> codes;
};

Int4Coded run_int4(Isa isa, const Floats& x, float factor = 1,
                   const Floats& residual = {}) {
  const Int4Kernels& k = int4_kernels(isa);
  const std::size_t blocks = (x.size() + kInt4Block - 1) / kInt4Block;
  Int4Coded c{Floats(blocks), residual, Floats(x.size(), -7), x,
              std::vector<std::uint8_t>(blocks * kInt4Bytes, 99)};
  k.encode(x, factor, c.residual, c.steps, c.codes);
  k.decode(c.steps, c.codes, c.decoded);
  k.decode_add(c.steps, c.codes, c.added);
  return c;
}

// Calls check(pattern, values).
template <class Check>
void for_all(Check check) {
  for (const Pattern& pattern : patterns()) {
    for (std::size_t size : testing::sizes()) {
      SCOPED_TRACE(pattern.name + ", " + std::to_string(size));
      ASSERT_NO_FATAL_FAILURE(check(pattern, make(pattern, size)));
    }
  }
}
// Calls check(block, its first value, its end).
template <class Check>
void for_blocks(std::size_t size, Check check) {
  for (std::size_t at = 0; at < size; at += kInt4Block)
    check(at / kInt4Block, at, std::min(size, at + kInt4Block));
}

// Applies the matrix as the header states it, without shortcuts.
double rotated(const Floats& group, unsigned row) {
  double sum = 0;
  for (unsigned column = 0; column < 32; ++column)
    sum += std::popcount(row & column) % 2 ? -group[column] : group[column];
  return sum;
}

TEST(Int4, EveryVariantEqualsTheReferenceBitForBit) {
  for (Isa isa : testing::fast_isas()) {
    SCOPED_TRACE(isa_name(isa));
    for_all([&](const Pattern& pattern, const Floats& x) {
      for (const Floats& residual : {Floats{}, make(pattern, x.size(), 77)}) {
        const Int4Coded fast = run_int4(isa, x, 1.0f / 3, residual);
        const Int4Coded truth = run_int4(Isa::portable, x, 1.0f / 3, residual);
        ASSERT_EQ(fast.codes, truth.codes);
        ASSERT_TRUE(same(fast.steps, truth.steps));
        ASSERT_TRUE(same(fast.residual, truth.residual));
        ASSERT_TRUE(same(fast.decoded, truth.decoded));
        ASSERT_TRUE(same(fast.added, truth.added));
      }
    });
  }
}

TEST(Int4, CodesAreThoseOfTheRotatedGroups) {
  const Floats x = make(patterns()[0], kInt4Block);
  const Int4Coded c = run_int4(isa_best(), x);
  for (unsigned first = 0; first < 4; ++first) {
    Floats group;
    for (unsigned k = 0; k < 32; ++k)
      group.push_back(x[first + 4 * k] * int4_sign(first + 4 * k));
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned place = first + 4 * k;
      const int byte = c.codes[place % 64];
      int code = (place < 64 ? byte : byte >> 4) & 15;
      code = code > 7 ? code - 16 : code;
      ASSERT_NEAR(code, rotated(group, k) / (32 * c.steps[0]), 0.5001);
      ASSERT_GE(code, -7);
    }
  }
}

TEST(Int4, MeanSquareErrorOfABlockIsWithinItsBound) {
  for_all([&](const Pattern& pattern, const Floats& x) {
    if (!pattern.finite) return;
    const Int4Coded c = run_int4(isa_best(), x);
    for_blocks(x.size(), [&](std::size_t block, std::size_t at, std::size_t end) {
      double off = 0, top = 0;
      for (std::size_t i = at; i < end; ++i) {
        ASSERT_TRUE(std::isfinite(c.decoded[i]));
        const double target = std::clamp<double>(x[i], -1e37, 1e37);
        top = std::max(top, std::abs(target));
        off += (target - c.decoded[i]) * (target - c.decoded[i]);
      }
      const double half = 16.0 * c.steps[block];
      // This allows for the rounding of sums of 32 values, and of the decoded ones.
      const double slack = 32 * top * 0x1p-22 + 32 * 1.5e-45;
      ASSERT_LE(std::sqrt(off / 128), half / std::sqrt(32.0) + slack);
    });
  });
}

TEST(Int4, ValuesOfOneSizeLoseAnEighthOfThem) {
  for (const char* name : {"normal", "negative"}) {
    const auto pattern = std::ranges::find(patterns(), name, &Pattern::name);
    const Floats x = make(*pattern, 1 << 16);
    const Int4Coded c = run_int4(isa_best(), x);
    double off = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      off += (x[i] - c.decoded[i]) * (x[i] - c.decoded[i]);
      size += x[i] * x[i];
    }
    EXPECT_LE(std::sqrt(off / size), 0.125) << name;
  }
}

TEST(Int4, AFewLargeValuesAmongSmallOnesCostLittle) {
  Floats x = make(patterns()[0], 1 << 14);
  for (float& value : x) value *= 0.01f;
  for (std::size_t i = 5; i < x.size(); i += 200) x[i] = 1;
  const Int4Coded c = run_int4(isa_best(), x);
  double off = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - c.decoded[i]) * (x[i] - c.decoded[i]);
    size += x[i] * x[i];
  }
  EXPECT_LE(std::sqrt(off / size), 0.1) << "not rotated it is 0.14";
}

TEST(Int4, ValueIsDecodedPlusNewResidual) {
  for_all([&](const Pattern& pattern, const Floats& x) {
    if (!pattern.finite) return;
    const Floats before(x.size(), 0.25f);
    const Int4Coded c = run_int4(isa_best(), x, 0.5f, before);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(c.residual[i]));
      ASSERT_EQ(c.residual[i], x[i] * 0.5f + 0.25f - c.decoded[i]);
    }
  });
}

TEST(Int4, ABlockThatIsNotFiniteDecodesToNanAndLeavesItsResidual) {
  for (const Pattern& pattern : patterns()) {
    if (pattern.finite) continue;
    SCOPED_TRACE(pattern.name);
    const Floats x = make(pattern, 1500), residual = make(patterns()[0], 1500);
    const Int4Coded c = run_int4(isa_best(), x, 1, residual);
    for_blocks(x.size(), [&](std::size_t block, std::size_t at, std::size_t end) {
      const bool finite = std::all_of(x.begin() + at, x.begin() + end,
                                      [](float v) { return std::isfinite(v); });
      ASSERT_EQ(std::isnan(c.steps[block]), !finite);
      for (std::size_t i = at; i < end; ++i) {
        ASSERT_EQ(std::isnan(c.decoded[i]), !finite) << i;
        if (!finite) {
          ASSERT_EQ(c.residual[i], residual[i]);
        }
      }
      if (finite) return;
      for (std::size_t i = 0; i < kInt4Bytes; ++i)
        ASSERT_EQ(c.codes[block * kInt4Bytes + i], 0);
    });
  }
}

TEST(Int4, ZerosStayZeroAndHaveStepZero) {
  const Int4Coded c = run_int4(isa_best(), Floats(300), 1, Floats(300));
  EXPECT_EQ(c.steps, Floats(3));
  EXPECT_EQ(c.decoded, Floats(300));
  EXPECT_EQ(c.residual, Floats(300));
}

TEST(Int4, LargeOutputsEqualSmallOnes) {
  const std::size_t size =
      (std::size_t{1} << 20) + 131;  // long enough to bypass the caches
  const Floats x = make(patterns()[0], size);
  const Int4Coded c = run_int4(isa_best(), x);
  Floats sum(size);
  int4_kernels().decode_add(c.steps, c.codes, sum);
  EXPECT_TRUE(std::equal(sum.begin(), sum.end(), c.decoded.begin()));
}

}  // namespace
}  // namespace brigade::kernels
