#include "kernels/cast.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using testing::fast_isas;
using testing::make;
using testing::patterns;
using testing::same;
using testing::sizes;
using Halves = std::vector<std::uint16_t>;

struct Format {
  const char* name;
  const CastKernels& (*kernels)(Isa);
  std::uint16_t infinity;
  double largest;
};
void PrintTo(const Format& format, std::ostream* out) { *out << format.name; }

class Cast : public ::testing::TestWithParam<Format> {
 protected:
  const CastKernels& reference() const { return GetParam().kernels(Isa::portable); }
  bool is_nan(std::uint16_t half) const { return (half & 0x7fff) > GetParam().infinity; }
  float widened(std::uint16_t half) const {
    float out = 0;
    reference().widen({&half, 1}, 1.0f, {&out, 1});
    return out;
  }
  std::uint16_t narrowed(float x) const {
    std::uint16_t out = 0;
    reference().narrow({&x, 1}, 1.0f, {&out, 1});
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, Cast,
                         ::testing::Values(Format{"fp16", fp16_kernels, 0x7c00, 65504.0},
                                           Format{"bf16", bf16_kernels, 0x7f80, 3.3895e38}),
                         [](const auto& info) { return info.param.name; });

Halves narrow(const CastKernels& k, const std::vector<float>& x, float scale) {
  Halves out(x.size(), 0xdead);
  k.narrow(x, scale, out);
  return out;
}
std::vector<float> widen(const CastKernels& k, const Halves& x, float scale) {
  std::vector<float> out(x.size(), -7.0f);
  k.widen(x, scale, out);
  return out;
}
std::vector<float> widen_add(const CastKernels& k, const Halves& x,
                             std::vector<float> sum) {
  k.widen_add(x, sum);
  return sum;
}

TEST_P(Cast, EveryVariantEqualsTheReferenceBitForBit) {
  for (Isa isa : fast_isas()) {
    const CastKernels& fast = GetParam().kernels(isa);
    for (const auto& pattern : patterns()) {
      for (std::size_t size : sizes()) {
        SCOPED_TRACE(std::string(isa_name(isa)) + ", " + pattern.name + ", " +
                     std::to_string(size));
        const auto x = make(pattern, size);
        for (float scale : {1.0f, 0.25f, 1.0f / 3}) {
          const Halves half = narrow(reference(), x, scale);
          ASSERT_EQ(narrow(fast, x, scale), half);
          ASSERT_TRUE(same(widen(fast, half, scale), widen(reference(), half, scale)));
          ASSERT_TRUE(same(widen_add(fast, half, x), widen_add(reference(), half, x)));
        }
      }
    }
  }
}

TEST_P(Cast, EveryVariantStandsAnyAlignmentAndWritesNothingElse) {
  const auto x = make(patterns()[0], 200);
  for (Isa isa : fast_isas()) {
    const CastKernels& fast = GetParam().kernels(isa);
    for (std::size_t at = 0; at < 17; ++at) {
      const std::span part = std::span(x).subspan(at, 150);
      Halves half(200, 0xdead);
      fast.narrow(part, 1.0f, std::span(half).subspan(at, 150));
      std::vector<float> out(200, -7.0f);
      fast.widen(std::span(half).subspan(at, 150), 1.0f, std::span(out).subspan(at, 150));
      for (std::size_t i = 0; i < 200; ++i) {
        const bool inside = i >= at && i < at + 150;
        ASSERT_EQ(half[i], inside ? narrowed(x[i]) : 0xdead);
        ASSERT_EQ(out[i], inside ? widened(narrowed(x[i])) : -7.0f);
      }
    }
  }
}

TEST_P(Cast, LargeOutputsEqualSmallOnes) {
  const std::size_t size =
      (std::size_t{1} << 20) + 259;  // long enough to bypass the caches
  const auto x = make(patterns()[0], size);
  const Halves half = narrow(reference(), x, 1.0f);
  const auto out = widen(GetParam().kernels(isa_best()), half, 1.0f);
  for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(out[i], widened(half[i])) << i;
}

TEST_P(Cast, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const std::uint16_t back = narrowed(widened(half));
    if (is_nan(half)) {
      ASSERT_TRUE(is_nan(back)) << h;
    } else {
      ASSERT_EQ(back, half);
    }
  }
}

// Checks the definition: no neighbour is nearer, and a tie goes to the even one.
TEST_P(Cast, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 4099) {
    const float x = std::bit_cast<float>(bits);
    const std::uint16_t half = narrowed(x);
    ASSERT_EQ(narrowed(-x), half | 0x8000);
    if (half == GetParam().infinity) {
      ASSERT_GT(x, GetParam().largest);
      continue;
    }
    const double error = std::abs(static_cast<double>(x) - widened(half));
    for (int step : {-1, 1}) {
      const auto other = static_cast<std::uint16_t>(half + step);
      if ((half == 0 && step < 0) || other >= GetParam().infinity) continue;
      const double there = std::abs(static_cast<double>(x) - widened(other));
      ASSERT_TRUE(error < there || (error == there && half % 2 == 0)) << x;
    }
  }
}

TEST_P(Cast, TiesGoToTheEvenHalf) {
  for (std::uint32_t h = 1; h + 1 < GetParam().infinity; h += 7) {
    const double low = widened(static_cast<std::uint16_t>(h));
    const double high = widened(static_cast<std::uint16_t>(h + 1));
    ASSERT_EQ(narrowed(static_cast<float>((low + high) / 2)), h % 2 == 0 ? h : h + 1);
  }
}

TEST_P(Cast, NanStaysNanWhateverItsPayload) {
  for (std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffc00000u}) {
    const std::uint16_t half = narrowed(std::bit_cast<float>(bits));
    EXPECT_TRUE(is_nan(half)) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
    EXPECT_TRUE(std::isnan(widened(half)));
  }
}

TEST(CastFp16, OverflowsToInfinityBeyondTheLargest) {
  const std::vector<float> x{65504.0f, 65519.99f, 65520.0f, 1e30f, -1e30f};
  const Halves expected{0x7bff, 0x7bff, 0x7c00, 0x7c00, 0xfc00};
  EXPECT_EQ(narrow(fp16_kernels(), x, 1.0f), expected);
}

}  // namespace
}  // namespace brigade::kernels
