#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/affine_u8.h"
#include "kernels/int8_block.h"
#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using testing::fast_isas;
using testing::make;
using testing::Pattern;
using testing::patterns;
using testing::same;
using testing::sizes;
using Floats = std::vector<float>;

// One encoding and its decoding, in the same form for all quantizers. `header` has one or
// two floats for each block, the scale first.
struct Coded {
  Floats header, residual, decoded, added;
  std::vector<std::uint8_t> codes;
};

Coded run_int8(Isa isa, const Floats& x, float factor, const Floats& residual) {
  const Int8Kernels& k = int8_kernels(isa);
  Coded c{Floats((x.size() + 255) / 256), residual, Floats(x.size(), -7), x,
          std::vector<std::uint8_t>(x.size(), 99)};
  const std::span codes(reinterpret_cast<std::int8_t*>(c.codes.data()), c.codes.size());
  k.encode(x, factor, c.residual, c.header, codes);
  k.decode(c.header, codes, c.decoded);
  k.decode_add(c.header, codes, c.added);
  return c;
}

Coded run_affine(Isa isa, const Floats& x, float factor, const Floats& residual,
                 std::size_t block) {
  const AffineKernels& k = affine_kernels(isa);
  std::vector<AffineHeader> headers((x.size() + block - 1) / block);
  Coded c{{}, residual, Floats(x.size(), -7), x, std::vector<std::uint8_t>(x.size(), 99)};
  k.encode(x, factor, c.residual, block, headers, c.codes);
  k.decode(headers, block, c.codes, c.decoded);
  k.decode_add(headers, block, c.codes, c.added);
  for (const AffineHeader& h : headers) c.header.insert(c.header.end(), {h.scale, h.low});
  return c;
}

struct Scheme {
  const char* name;
  std::size_t block;  // 0: all values are one block
  std::size_t params;
  std::function<Coded(Isa, const Floats&, float, const Floats&)> run;
};
void PrintTo(const Scheme& scheme, std::ostream* out) { *out << scheme.name; }

class Quantizer : public ::testing::TestWithParam<Scheme> {
 protected:
  std::size_t block(std::size_t size) const {
    return GetParam().block > 0 ? GetParam().block : std::max<std::size_t>(size, 1);
  }
  float scale(const Coded& c, std::size_t i) const {
    return c.header[i / block(c.codes.size()) * GetParam().params];
  }
  Coded run(const Floats& x, float factor = 1, const Floats& residual = {}) const {
    return GetParam().run(isa_best(), x, factor, residual);
  }
  // Calls check(pattern, values) for every pattern and size.
  template <class Check>
  void for_all(Check check) const {
    for (const Pattern& pattern : patterns()) {
      for (std::size_t size : sizes()) {
        SCOPED_TRACE(pattern.name + ", " + std::to_string(size));
        ASSERT_NO_FATAL_FAILURE(check(pattern, make(pattern, size)));
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(
    Schemes, Quantizer,
    ::testing::Values(Scheme{"int8", kInt8Block, 1, run_int8},
                      Scheme{"affine_block", 512, 2,
                             [](Isa isa, const Floats& x, float f, const Floats& r) {
                               return run_affine(isa, x, f, r, 512);
                             }},
                      Scheme{"affine_whole", 0, 2,
                             [](Isa isa, const Floats& x, float f, const Floats& r) {
                               return run_affine(isa, x, f, r,
                                                 std::max<std::size_t>(x.size(), 1));
                             }}),
    [](const auto& info) { return info.param.name; });

TEST_P(Quantizer, EveryVariantEqualsTheReferenceBitForBit) {
  for (Isa isa : fast_isas()) {
    SCOPED_TRACE(isa_name(isa));
    for_all([&](const Pattern& pattern, const Floats& x) {
      for (const Floats& residual : {Floats{}, make(pattern, x.size(), 77)}) {
        for (float factor : {1.0f, 1.0f / 3}) {
          const Coded fast = GetParam().run(isa, x, factor, residual);
          const Coded truth = GetParam().run(Isa::portable, x, factor, residual);
          ASSERT_EQ(fast.codes, truth.codes);
          ASSERT_TRUE(same(fast.header, truth.header));
          ASSERT_TRUE(same(fast.residual, truth.residual));
          ASSERT_TRUE(same(fast.decoded, truth.decoded));
          ASSERT_TRUE(same(fast.added, truth.added));
        }
      }
    });
  }
}

TEST_P(Quantizer, ErrorIsAtMostHalfAScale) {
  for_all([&](const Pattern& pattern, const Floats& x) {
    if (!pattern.finite) return;
    const Coded c = run(x);
    double top = 0;
    for (float v : x) top = std::max<double>(top, std::abs(v));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(c.decoded[i]));
      const double target =
          std::clamp<double>(x[i], -3.3e38, 3.3e38);  // they saturate there
      const double slack = top * 0x1p-23 + 1e-45;     // rounding of the decoded value
      ASSERT_LE(std::abs(target - c.decoded[i]), scale(c, i) / 2.0 + slack) << x[i];
    }
  });
}

TEST_P(Quantizer, ScaleIsNoCoarserThanTheRangeNeeds) {
  for_all([&](const Pattern& pattern, const Floats& x) {
    if (!pattern.finite) return;
    const Coded c = run(x);
    const std::size_t block = this->block(x.size());
    for (std::size_t at = 0; at < x.size(); at += block) {
      const auto end = x.begin() + std::min(at + block, x.size());
      const auto [least, most] = std::minmax_element(x.begin() + at, end);
      const double range = GetParam().params == 1
                               ? 2 * std::max<double>(std::abs(*least), std::abs(*most))
                               : static_cast<double>(*most) - *least;
      ASSERT_LE(scale(c, at), range / 254 * (1 + 1e-6) + 1.5e-45);
    }
  });
}

TEST_P(Quantizer, ZeroStaysZeroWhereTheRangeHoldsIt) {
  for_all([&](const Pattern& pattern, Floats x) {
    if (!pattern.finite || x.empty()) return;
    const std::size_t block = this->block(x.size());
    for (std::size_t i = 0; i < x.size(); i += std::min<std::size_t>(block, 5)) x[i] = 0;
    const Coded c = run(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) {
        ASSERT_EQ(c.decoded[i], 0.0f);
      }
    }
  });
}

TEST_P(Quantizer, ValueIsDecodedPlusNewResidual) {
  for_all([&](const Pattern& pattern, const Floats& x) {
    if (!pattern.finite || x.empty()) return;
    const Coded before = run(x, 0.5f);  // a finite start: the residual is small
    Floats residual(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      residual[i] = x[i] * 0.5f - before.decoded[i];
    const Coded c = run(x, 0.5f, residual);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float p = x[i] * 0.5f + residual[i];
      ASSERT_TRUE(same(c.residual[i], p - c.decoded[i]) ||
                  c.residual[i] == p - c.decoded[i]);
      ASSERT_TRUE(std::isfinite(c.residual[i]));
    }
  });
}

TEST_P(Quantizer, ABlockThatIsNotFiniteDecodesToNanAndLeavesItsResidual) {
  for (const Pattern& pattern : patterns()) {
    if (pattern.finite) continue;
    SCOPED_TRACE(pattern.name);
    const Floats x = make(pattern, 1500), residual = make(patterns()[0], 1500);
    const Coded c = run(x, 1, residual);
    const std::size_t block = this->block(x.size());
    for (std::size_t at = 0; at < x.size(); at += block) {
      const std::size_t end = std::min(at + block, x.size());
      const bool finite = std::all_of(x.begin() + at, x.begin() + end,
                                      [](float v) { return std::isfinite(v * 1.0f); });
      for (std::size_t i = at; i < end; ++i) {
        ASSERT_EQ(std::isnan(c.decoded[i]), !finite) << i;
        if (finite) continue;
        ASSERT_EQ(c.codes[i], 0);
        ASSERT_EQ(c.residual[i], residual[i]);
      }
    }
  }
}

TEST_P(Quantizer, ScalingByAPowerOfTwoScalesTheResult) {
  const Floats x = make(patterns()[0], 3000);
  const Coded once = run(x);
  for (int power : {-20, -1, 1, 30}) {
    const Coded scaled = run(x, std::ldexp(1.0f, power));
    EXPECT_EQ(scaled.codes, once.codes);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(scaled.decoded[i], std::ldexp(once.decoded[i], power));
    }
  }
}

TEST_P(Quantizer, LargeOutputsEqualSmallOnes) {
  const std::size_t size =
      (std::size_t{1} << 20) + 259;  // long enough to bypass the caches
  const Coded c = run(make(patterns()[0], size), 1, Floats(size));
  const Coded truth =
      GetParam().run(Isa::portable, make(patterns()[0], size), 1, Floats(size));
  EXPECT_TRUE(same(c.decoded, truth.decoded));
  for (std::size_t i = 0; i < size; ++i) {
    if (GetParam().params == 1) {
      ASSERT_EQ(c.decoded[i], static_cast<std::int8_t>(c.codes[i]) * scale(c, i));
    }
  }
}

TEST(QuantizerAffine, ConstantBlocksAreExact) {
  for (float value : {0.0f, -0.3f, 1e-45f, 3e38f, 100.2f}) {
    const Coded c = run_affine(isa_best(), Floats(700, value), 1, Floats(700), 512);
    for (std::size_t i = 0; i < 700; ++i) {
      ASSERT_EQ(c.decoded[i], value);
      ASSERT_EQ(c.residual[i], 0.0f);
    }
  }
}

TEST(QuantizerInt8, ABlockOfZerosHasScaleZero) {
  const Coded c = run_int8(isa_best(), Floats(300), 1, Floats(300));
  EXPECT_EQ(c.header, Floats(2));
  EXPECT_EQ(c.decoded, Floats(300));
  EXPECT_EQ(c.residual, Floats(300));
}

TEST(QuantizerInt8, WholeNumbersUpTo127AreExact) {
  Floats x;
  for (int i = -127; i <= 127; ++i) x.push_back(static_cast<float>(i));
  const Coded c = run_int8(isa_best(), x, 1, {});
  EXPECT_EQ(c.decoded, x);
}

}  // namespace
}  // namespace brigade::kernels
