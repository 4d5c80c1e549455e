// Inputs that compressors must handle: each has a name and a seeded generator.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa.h"

namespace brigade::testing {

struct Pattern {
  std::string name;
  bool finite;
  std::function<float(std::mt19937& random, std::size_t index)> value;
};

inline float normal(std::mt19937& random, float width = 1.0f) {
  return std::normal_distribution<float>(0.0f, width)(random);
}
inline float sign(std::mt19937& random) { return random() % 2 == 0 ? 1.0f : -1.0f; }
inline float any_bits(std::mt19937& random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
}

inline const std::vector<Pattern>& patterns() {
  using R = std::mt19937;
  using Limits = std::numeric_limits<float>;
  static const std::vector<Pattern> all{
      {"normal", true, [](R& r, std::size_t) { return normal(r); }},
      {"zeros", true, [](R&, std::size_t i) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"constant", true, [](R&, std::size_t) { return -0.3f; }},
      {"denormals", true, [](R& r, std::size_t) { return normal(r, 1e-43f); }},
      {"one denormal", true,
       [](R&, std::size_t i) { return i % 300 == 7 ? Limits::denorm_min() : 0.0f; }},
      {"small normals", true, [](R& r, std::size_t) { return normal(r, 1e-37f); }},
      {"1e30", true, [](R& r, std::size_t) { return normal(r, 1e30f); }},
      {"3e38", true, [](R& r, std::size_t) { return 3e38f * sign(r); }},
      {"largest", true, [](R& r, std::size_t) { return Limits::max() * sign(r); }},
      {"largest constant", true, [](R&, std::size_t) { return Limits::max(); }},
      {"100 to 100.2", true,
       [](R& r, std::size_t) {
         return 100.0f + 0.2f * (static_cast<float>(r() % 1000) / 999);
       }},
      {"negative", true, [](R& r, std::size_t) { return -1.0f - std::abs(normal(r)); }},
      {"wild", true,
       [](R& r, std::size_t) {
         const float x = any_bits(r);
         return std::isfinite(x) ? x : 0.0f;
       }},
      {"any bits", false, [](R& r, std::size_t) { return any_bits(r); }},
      {"a NaN here and there", false,
       [](R& r, std::size_t i) { return i % 700 == 3 ? Limits::quiet_NaN() : normal(r); }},
      {"an Inf here and there", false,
       [](R& r, std::size_t i) { return i % 700 == 3 ? -Limits::infinity() : normal(r); }},
  };
  return all;
}

inline std::vector<float> make(const Pattern& pattern, std::size_t size,
                               unsigned seed = 1) {
  std::mt19937 random(seed + static_cast<unsigned>(size));
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = pattern.value(random, i);
  return values;
}

inline std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t size = 0; size <= 70; ++size) all.push_back(size);
  for (std::size_t size : {127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 767, 1000,
                           1023, 1024, 1025, 2049, 4095, 4096, 4097}) {
    all.push_back(size);
  }
  return all;
}

inline std::vector<kernels::Isa> fast_isas() {
  std::vector<kernels::Isa> all;
  for (auto isa : {kernels::Isa::avx2, kernels::Isa::avx512}) {
    if (kernels::isa_runs(isa)) all.push_back(isa);
  }
  return all;
}

// The same bits, or both NaN.
inline bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

}  // namespace brigade::testing
