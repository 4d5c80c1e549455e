// Buckets that the host has issued and the device may not have finished.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/failure/watcher.h"

namespace brigade::engine {

// Over NCCL the host is done with a bucket once it has issued it: only the device knows
// when, and whether, it ends. Thread-safe.
class DeviceWork {
 public:
  using Clock = Watcher::Clock;
  // What is on the stream by now is a bucket's work.
  void add(c10::Stream stream, std::string description);
  // The bucket that the device works on. It counts as started when the one before it was
  // found ended: a device may have much to do that was issued long ago. Throws the device's
  // own error.
  std::optional<Watcher::Watched> oldest();
  // What was issued last.
  std::string last() const;

 private:
  struct Issued {
    c10::Event end;
    Watcher::Watched what;
  };
  mutable std::mutex mutex_;
  std::deque<Issued> issued_;
  std::string last_;
  std::vector<c10::Event> spare_;
};

}  // namespace brigade::engine
