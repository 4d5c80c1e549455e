// A sample of the block gives a lower bound of the largest magnitudes. The few values above
// it are *candidates*, and the largest are searched among them only. The sample affects
// only the time, not the result.
#include "kernels/top_k.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

constexpr std::size_t kSampleStride = 16, kSampleMost = kTopKBlock / kSampleStride;
constexpr std::size_t kGroup = 16;  // values that are tested together

using Place = std::uint16_t;

std::int32_t magnitude_of(float value) noexcept { return bits_of(value) & 0x7fffffff; }

std::int32_t top_magnitude(const float* p, std::size_t size) noexcept {
  std::int32_t top = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t magnitude = magnitude_of(p[i]);
    top = magnitude > top ? magnitude : top;
  }
  return top;
}

// A magnitude that, by the sample, somewhat more than `count` values reach.
std::int32_t guess_least(std::span<const float> p, std::size_t count) noexcept {
  const std::size_t samples = p.size() / kSampleStride;
  const std::size_t rank = count / kSampleStride * 3 / 2 + 16;
  if (rank >= samples) return 0;
  std::int32_t sample[kSampleMost];
  for (std::size_t i = 0; i < samples; ++i) sample[i] = magnitude_of(p[i * kSampleStride]);
  std::nth_element(sample, sample + rank, sample + samples, std::greater<>());
  return sample[rank];
}

// Writes the places of all values with that magnitude or more, ascending; returns their
// number.
std::size_t find_candidates(std::span<const float> p, std::int32_t least,
                            Place* places) noexcept {
  std::size_t found = 0;
  for (std::size_t at = 0; at < p.size(); at += kGroup) {
    const std::size_t end = std::min(p.size(), at + kGroup);
    if (end == at + kGroup && top_magnitude(p.data() + at, kGroup) < least) continue;
    for (std::size_t i = at; i < end; ++i) {
      places[found] = static_cast<Place>(i);
      found += magnitude_of(p[i]) >= least ? 1 : 0;
    }
  }
  return found;
}

// Moves the places of the `count` largest to the front, ascending.
void choose(std::span<const float> p, std::size_t count, std::span<Place> places) noexcept {
  std::size_t found = 0;
  if (count < p.size()) {
    found = find_candidates(p, guess_least(p, count), places.data());
  }
  if (found < count) found = find_candidates(p, 0, places.data());
  if (found == count) return;
  const auto larger = [&](Place a, Place b) {
    const std::int32_t x = magnitude_of(p[a]), y = magnitude_of(p[b]);
    return x != y ? x > y : a < b;
  };
  std::nth_element(places.begin(), places.begin() + count, places.begin() + found, larger);
  std::sort(places.begin(), places.begin() + count);
}

// p = src * factor, plus p with kResidual. If a sum is not finite, writes nothing and
// returns false.
template <bool kResidual>
bool add_up(std::span<const float> src, float factor, float* __restrict p) noexcept {
  const float* __restrict from = src.data();
  std::int32_t top = 0;
  for (std::size_t i = 0; i < src.size(); ++i) {
    const std::int32_t magnitude = magnitude_of(value_at<kResidual>(from, factor, p, i));
    top = magnitude > top ? magnitude : top;
  }
  if (top >= kInfBits) return false;
  for (std::size_t i = 0; i < src.size(); ++i)
    p[i] = value_at<kResidual>(from, factor, p, i);
  return true;
}

}  // namespace

void top_k(std::span<const float> src, float factor, std::span<float> residual,
           std::span<float> values, std::span<std::uint16_t> places) noexcept {
  alignas(64) float own[kTopKBlock];
  Place candidates[kTopKBlock];
  const bool keeps = !residual.empty();
  float* p = keeps ? residual.data() : own;
  const bool finite = keeps ? add_up<true>(src, factor, p) : add_up<false>(src, factor, p);
  if (!finite) {
    std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(places, Place{0});
    return;
  }
  choose({p, src.size()}, values.size(), candidates);
  for (std::size_t i = 0; i < values.size(); ++i) {
    places[i] = candidates[i];
    values[i] = p[places[i]];
    p[places[i]] = 0.0f;
  }
}

void top_k_decode(std::span<const float> values, std::span<const std::uint16_t> places,
                  std::span<float> dst, bool add) noexcept {
  if (!values.empty() && values[0] != values[0]) {
    std::ranges::fill(dst, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (!add) std::ranges::fill(dst, 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (places[i] < dst.size()) dst[places[i]] += values[i];
  }
}

}  // namespace brigade::kernels
