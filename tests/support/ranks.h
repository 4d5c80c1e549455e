// Runs a function in real worker processes, one for each rank, connected over loopback.
#pragma once
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::testing {

struct RankOptions {
  // The group's time limit.
  std::chrono::milliseconds timeout{20'000};
  // The workers are killed after this time, and the test fails.
  std::chrono::milliseconds wall{120'000};
  // The host's number for each rank. Empty: all are on one.
  std::vector<int> hosts = {};
};

// Forks `ranks` workers; in each, makes the process group and calls `body`. GoogleTest
// assertions and exceptions in a worker become failures of the calling test, with the rank
// before them. REQUIRES: the calling process has one thread, so a test program never
// computes with torch outside of `run_ranks`.
void run_ranks(int ranks, const std::function<void(ProcessGroup group)>& body,
               const RankOptions& options = {});

// Scales a test that could be arbitrarily long: `make check` sets BRIGADE_LONG_TESTS.
inline int brief_or_long(int brief, int full) {
  return std::getenv("BRIGADE_LONG_TESTS") ? full : brief;
}

}  // namespace brigade::testing
