// SPDX-License-Identifier: BSD-3-Clause
// What the engine did with each bucket and when, for timelines.
#pragma once
#include <chrono>
#include <cstdint>

namespace brigade {

// A stretch of time of one bucket at one station. Stations count from 0: the k-th stretch
// of a hook's code runs on the thread of station k, and station k's group carries its k-th
// collective. With NCCL a station is a communicator, and times are the device's own: when
// its streams came to the work, not when the host asked for it.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    compute,     // the hook's code between two collectives
    collective,  // from issuing it to its end
  };
  Kind kind = Kind::compute;
  int station = 0;
  std::int64_t step = 0;    // as Comm::step()
  std::int64_t bucket = 0;  // as Bucket::index()
  int lane = -1;            // which part of the bucket, after Comm::split; -1: the whole
  std::int64_t bytes = 0;   // that this rank sends, for a collective
  // All processes of one host have the same clock. `ready` is when backward() handed the
  // bucket over.
  std::chrono::steady_clock::time_point ready = {}, begin = {}, end = {};
};

}  // namespace brigade
