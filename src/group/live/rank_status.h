// What a worker shows of itself while it trains, to brigade top and --metrics-port.
#pragma once
#include <cstdint>
#include <type_traits>

namespace brigade::group {

// A bucket in the last step that is over.
struct BucketStatus {
  std::int64_t bytes_sent = 0;
  float reduce_ms = 0;   // from its hand-over to its end
  float exposed_ms = 0;  // the part of it after the last bucket's hand-over
};

// Times of a step, by the host's clock.
struct StepStatus {
  float step_ms = 0;     // from its first bucket to that of the next step
  float compute_ms = 0;  // from the end of the last reduction to the last hand-over
  float wait_ms = 0;     // from there to the end of this step's last reduction
};

// Plain numbers, so that another process can read them from shared memory.
struct RankStatus {
  static constexpr int kSteps = 16;
  static constexpr int kBuckets = 32;

  std::int64_t steps = 0;          // begun so far
  std::int64_t step_began_ns = 0;  // of the last of them, by CLOCK_MONOTONIC
  std::int64_t bytes_sent = 0;     // so far, by all models of the process
  std::int64_t bytes_to_other_hosts = 0;
  std::int64_t losses = 0;  // how many were told; 0: `loss` is none
  double loss = 0;          // the last one
  // What was no finite number: losses, and samples of a bucket's gradients.
  std::int64_t bad_losses = 0;
  std::int64_t bad_gradients = 0;
  std::int32_t generation = -1;  // of an elastic job
  std::int32_t members = 0;      // of that generation
  // Steps that are over; the k-th is at k % kSteps.
  std::int64_t steps_over = 0;
  StepStatus recent[kSteps] = {};
  std::int32_t buckets = 0;  // at most kBuckets of them are shown
  std::int32_t unused = 0;
  BucketStatus bucket[kBuckets] = {};
  char hook[64] = {};
};
static_assert(std::is_trivially_copyable_v<RankStatus>);
static_assert(sizeof(RankStatus) % sizeof(std::uint64_t) == 0);

}  // namespace brigade::group
