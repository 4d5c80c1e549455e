#include "kernels/mean.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/patterns.h"
#include "kernels/sum_squares.h"

namespace brigade::kernels {
namespace {

using Floats = std::vector<float>;

std::vector<Floats> random_parts(std::size_t parts, std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(parts * 7919 + size));
  std::vector<Floats> all(parts, Floats(size));
  for (Floats& part : all) {
    for (float& value : part) value = testing::normal(random);
  }
  return all;
}

Floats in_plain_words(const std::vector<Floats>& parts) {
  Floats result = parts[0];
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t part = 1; part < parts.size(); ++part) result[i] += parts[part][i];
    result[i] /= static_cast<float>(parts.size());
  }
  return result;
}

// A block ends at 2048, so its neighbours are tested too.
const std::size_t kSizes[] = {0, 1, 17, 2047, 2048, 2049, 10'000};

TEST(Mean, IsTheSumInOrderDividedByTheNumberOfParts) {
  for (std::size_t count : {1, 2, 3, 8}) {
    for (std::size_t size : kSizes) {
      const std::vector<Floats> parts = random_parts(count, size);
      std::vector<const float*> from;
      for (const Floats& part : parts) from.push_back(part.data());
      Floats out(size + 1, 5.0F);
      mean(from, size, out.data());
      EXPECT_EQ(out.back(), 5.0F) << "written beyond the end";
      out.pop_back();
      EXPECT_EQ(out, in_plain_words(parts)) << count << " parts of " << size;
    }
  }
}

TEST(Mean, MayReplaceAnyOfItsParts) {
  for (std::size_t replaced : {0, 1, 2}) {
    std::vector<Floats> parts = random_parts(3, 5000);
    const Floats expected = in_plain_words(parts);
    const std::vector<const float*> from{parts[0].data(), parts[1].data(), parts[2].data()};
    mean(from, 5000, parts[replaced].data());
    EXPECT_EQ(parts[replaced], expected) << "part " << replaced;
  }
}

TEST(SumSquares, IsThatOfFloat64WithinAMillionth) {
  for (std::size_t size : {0, 1, 31, 32, 33, 1023, 1024, 1025, 300'000}) {
    const Floats values = random_parts(1, size)[0];
    double expected = 0;
    for (const float value : values) expected += static_cast<double>(value) * value;
    EXPECT_NEAR(sum_squares(values), expected, 1e-6 * expected) << size;
  }
  // float32 alone would stop growing here.
  EXPECT_NEAR(sum_squares(Floats(20'000'000, 1.0F)), 2e7, 1);
}

TEST(SumSquares, EveryInstructionSetGivesTheReferencesBits) {
  for (std::size_t size : {0, 1, 31, 32, 33, 1023, 1024, 1025, 300'000}) {
    const Floats values = random_parts(1, size)[0];
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
      if (!isa_runs(isa)) continue;
      SCOPED_TRACE(std::string(isa_name(isa)) + " of " + std::to_string(size));
      EXPECT_EQ(sum_squares_kernel(isa)(values), sum_squares_kernel(Isa::portable)(values));
    }
  }
}

}  // namespace
}  // namespace brigade::kernels
