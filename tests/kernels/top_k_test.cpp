#include "kernels/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/patterns.h"

namespace brigade::kernels {
namespace {

using testing::make;
using testing::Pattern;
using testing::patterns;
using testing::same;
using Floats = std::vector<float>;

struct Kept {
  Floats values, residual;
  std::vector<std::uint16_t> places;
};

Kept run_top_k(const Floats& x, std::size_t count, float factor, const Floats& residual) {
  Kept kept{Floats(count), residual, std::vector<std::uint16_t>(count)};
  top_k(x, factor, kept.residual, kept.values, kept.places);
  return kept;
}

// Finds them by sorting all values.
std::vector<std::uint16_t> places_of_largest(const Floats& p, std::size_t count) {
  std::vector<std::uint16_t> all(p.size());
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::ranges::stable_sort(all, std::ranges::greater(),
                           [&](std::uint16_t place) { return std::abs(p[place]); });
  all.resize(count);
  std::ranges::sort(all);
  return all;
}

TEST(TopK, KeepsTheLargestWithTheirPlacesAndLeavesTheRestInTheResidual) {
  for (const Pattern& pattern : patterns()) {
    for (std::size_t size : {std::size_t{1}, std::size_t{17}, std::size_t{300},
                             std::size_t{4097}, kTopKBlock}) {
      const Floats x = make(pattern, size);
      Floats residual = make(patterns()[0], size, 5), p(size);
      if (pattern.finite) {
        for (float& value : residual) value *= 0x1p-60f;  // no sum overflows
      }
      for (std::size_t i = 0; i < size; ++i) p[i] = x[i] * 0.5f + residual[i];
      const bool finite =
          std::ranges::all_of(p, [](float value) { return std::isfinite(value); });
      for (std::size_t count : {std::size_t{1}, (size + 99) / 100, (size + 1) / 2, size}) {
        SCOPED_TRACE(pattern.name + ", " + std::to_string(count) + " of " +
                     std::to_string(size));
        const Kept kept = run_top_k(x, count, 0.5f, residual);
        if (!finite) {
          EXPECT_TRUE(std::ranges::all_of(kept.values, [](float v) { return v != v; }));
          EXPECT_EQ(kept.residual, residual);
          continue;
        }
        ASSERT_EQ(kept.places, places_of_largest(p, count));
        Floats left = p;
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_TRUE(same(kept.values[i], p[kept.places[i]]));
          left[kept.places[i]] = 0;
        }
        ASSERT_EQ(kept.residual, left);
        const Kept plain = run_top_k(p, count, 1, {});
        ASSERT_EQ(plain.places, kept.places);
        ASSERT_EQ(plain.values, kept.values);
      }
    }
  }
}

// The limit is guessed from a sample of every 16th value.
TEST(TopK, IsRightWhereTheSampleIsWrong) {
  for (std::size_t first : {0, 1}) {
    Floats x = make(patterns()[0], kTopKBlock);
    for (std::size_t i = first; i < x.size(); i += 16) x[i] *= 1e6f;
    for (std::size_t count : {100, 5000}) {
      EXPECT_EQ(run_top_k(x, count, 1, Floats(x.size())).places,
                places_of_largest(x, count));
    }
  }
}

TEST(TopK, DecodesToItsPlacesAndIgnoresThoseBeyond) {
  const Floats values{2, -3, 5};
  const std::vector<std::uint16_t> places{0, 2, 40000};
  Floats out(4, -7);
  top_k_decode(values, places, out, false);
  EXPECT_EQ(out, (Floats{2, 0, -3, 0}));
  top_k_decode(values, places, out, true);
  EXPECT_EQ(out, (Floats{4, 0, -6, 0}));
  top_k_decode(Floats{std::nanf(""), 1}, std::vector<std::uint16_t>{0, 0}, out, true);
  for (float value : out) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace brigade::kernels
