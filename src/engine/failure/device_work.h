// Buckets that the host has issued and the device may not have finished.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace brigade::engine {

// Over NCCL the host is done with a bucket once it has issued it: only the device knows
// when, and whether, it ends. Thread-safe.
class DeviceWork {
 public:
  using Clock = std::chrono::steady_clock;
  struct Bucket {
    int64_t index = 0, step = 0;
  };
  struct Oldest {
    Bucket bucket;
    Clock::time_point started;
  };
  // The work on the stream by now is a bucket's.
  void add(c10::Stream stream, Bucket bucket);
  // The bucket that the device works on. It counts as started when the one before it was
  // found ended: a device may have much to do that was issued long ago. Throws the device's
  // own error.
  std::optional<Oldest> oldest();
  // What was issued last.
  Bucket last() const;

 private:
  struct Issued {
    c10::Event end;
    Oldest what;
  };
  mutable std::mutex mutex_;
  std::deque<Issued> issued_;
  Bucket last_;
  std::vector<c10::Event> spare_;
};

}  // namespace brigade::engine
