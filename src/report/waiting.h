// Finds where a step spends time that is not computing: which bucket it waits for, and
// which rank the others wait for.
#pragma once
#include <span>
#include <vector>

#include "brigade/report.h"

namespace brigade::report {

// Medians of a bucket over the recorded steps and ranks.
struct BucketWaiting {
  std::int64_t bucket = 0;
  std::int64_t bytes = 0;  // sent by a rank in a step
  double reduce_ms = 0;    // from its hand-over to the end of its last collective
  double exposed_ms = 0;   // the part of it after the last bucket's hand-over
};
std::vector<BucketWaiting> waiting_by_bucket(std::span<const Span> spans);

// Medians of a rank over the recorded steps.
struct RankWaiting {
  int rank = 0;
  double compute_ms = 0;  // from the step's beginning to the last bucket's hand-over
  double wait_ms = 0;     // from then to the end of the last reduction
  // It computes for over kStraggles times the median of all ranks, so they wait for it.
  bool straggles = false;
};
constexpr double kStraggles = 1.25;
std::vector<RankWaiting> waiting_by_rank(std::span<const Span> spans);

// Returns both tables for a report; empty if nothing was recorded.
std::vector<Table> waiting_tables(std::span<const Span> spans);

}  // namespace brigade::report
