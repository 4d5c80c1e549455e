// Buckets that the host has issued and the device has perhaps not finished.
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

// Over NCCL the host only issues a bucket; only the device knows when, and whether, it
// ends. Thread-safe.
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
  // Records that the work on the stream up to now belongs to `bucket`.
  void add(c10::Stream stream, Bucket bucket);
  // The bucket that the device works on. It counts as started when the previous one was
  // found to have ended, because a device may have much work that was issued long ago.
  // Throws the device's own error.
  std::optional<Oldest> oldest();
  // The bucket that was issued last.
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
