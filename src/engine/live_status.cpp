#include "engine/live_status.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "group/live/rank_page.h"

namespace brigade::engine {
namespace {

constexpr std::chrono::seconds kBetweenSamples{1};
constexpr std::int64_t kSamples = 64;  // of a bucket

float ms_between(LiveStatus::Clock::time_point begin, LiveStatus::Clock::time_point end) {
  return std::max(0.0F, std::chrono::duration<float, std::milli>(end - begin).count());
}

// Whether some of the values, evenly spread, are all finite. A NaN spreads over a model
// within a step, so a few values are enough; all of them would be a pass over memory.
bool samples_are_finite(const at::Tensor& bucket) {
  const std::int64_t stride = std::max<std::int64_t>(1, bucket.numel() / kSamples);
  bool finite = true;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, bucket.scalar_type(), "samples", [&] {
        const auto* values = bucket.const_data_ptr<scalar_t>();
        for (std::int64_t i = 0; i < bucket.numel(); i += stride)
          finite = finite && std::isfinite(static_cast<float>(values[i]));
      });
  return finite;
}

}  // namespace

LiveStatus::LiveStatus() : page_(group::RankPage::of_this_process()) {}

LiveStatus::~LiveStatus() { close(); }

void LiveStatus::close() {
  if (page_ && claimed_) page_->release(this);
  page_ = nullptr;
}

void LiveStatus::begin_step(const std::string& hook) {
  if (!page_) return;
  claimed_ = claimed_ || page_->claim(this);
  if (!claimed_) return;
  const auto now = Clock::now();
  const bool first = step_began_ == Clock::time_point{};
  const group::StepStatus over = step_over(now);
  page_->update([&](group::RankStatus& status) {
    if (!first) {
      status.recent[status.steps_over++ % group::RankStatus::kSteps] = over;
      show_buckets(status);
    }
    ++status.steps;
    status.step_began_ns = group::monotonic_ns();
    status.bad_gradients += std::exchange(bad_gradients_, 0);
    status.hook[hook.copy(status.hook, sizeof status.hook - 1)] = 0;
  });
  sampling_ = now - sampled_at_ >= kBetweenSamples;
  if (sampling_) sampled_at_ = now;
  step_began_ = now;
  reduced_.clear();
}

group::StepStatus LiveStatus::step_over(Clock::time_point now) {
  group::StepStatus over{.step_ms = ms_between(step_began_, now)};
  if (reduced_.empty()) return over;
  const auto later = [](const Reduced& a, const Reduced& b) { return a.end < b.end; };
  const auto reduced = std::ranges::max_element(reduced_, later)->end;
  const bool known = reduced_before_ != Clock::time_point{};
  over.compute_ms = ms_between(known ? reduced_before_ : step_began_, last_start_);
  over.wait_ms = ms_between(last_start_, reduced);
  reduced_before_ = reduced;
  return over;
}

void LiveStatus::show_buckets(group::RankStatus& status) const {
  const size_t count = std::min<size_t>(reduced_.size(), group::RankStatus::kBuckets);
  for (size_t i = 0; i < count; ++i) {
    const Reduced& one = reduced_[i];
    status.bucket[i] = {
        .bytes_sent = one.bytes_sent,
        .reduce_ms = ms_between(one.begin, one.end),
        .exposed_ms = ms_between(std::max(one.begin, last_start_), one.end)};
  }
  status.buckets = static_cast<std::int32_t>(count);
}

void LiveStatus::started(const at::Tensor& bucket, Clock::time_point at) {
  if (!page_) return;
  last_start_ = at;
  if (!sampling_ || !bucket.is_cpu() || bucket.is_sparse() || !bucket.is_floating_point())
    return;
  const bool known_type =
      bucket.scalar_type() == at::kFloat || bucket.scalar_type() == at::kDouble ||
      bucket.scalar_type() == at::kHalf || bucket.scalar_type() == at::kBFloat16;
  if (known_type && !samples_are_finite(bucket)) ++bad_gradients_;
}

void LiveStatus::ended(std::int64_t index, const HookTraffic& cost, Clock::time_point begin,
                       Clock::time_point end) {
  if (!page_) return;
  page_->note([&](group::RankStatus& status) {
    status.bytes_sent += cost.bytes_sent;
    status.bytes_to_other_hosts += cost.bytes_to_other_hosts;
  });
  if (!claimed_) return;
  if (reduced_.size() <= static_cast<size_t>(index))
    reduced_.resize(static_cast<size_t>(index) + 1, {0, begin, begin});
  reduced_[static_cast<size_t>(index)] = {cost.bytes_sent, begin, end};
}

}  // namespace brigade::engine
