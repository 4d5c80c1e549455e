// Stations on a device: streams and events instead of threads.
//
// With NCCL a hook runs from beginning to end on one thread of the host, which never waits;
// the device orders the work. To overlap lanes there as on the host:
// - A *lane* has a stream, and all its work is there. Memory that it frees is reused in the
//   stream's order. Lanes share a few streams in rotation.
// - A *station* has an event, and the first few have a communicator each. The k-th stage of
//   a lane begins, on the device, when the k-th stage of the previous lane has ended there.
//   So two buckets are never in the same stage of a hook, on the device either, and one
//   bucket's second collective overlaps with the next one's first.
// The host issues everything in the order of tickets and lanes: every communicator sees one
// order on all ranks.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "engine/pipeline.h"

namespace brigade::engine {

// Used by one thread at a time.
class DeviceLanes {
 public:
  explicit DeviceLanes(c10::Device device);

  c10::Device device() const { return streams_.front().device(); }
  // Steps with equal lanes give them equal streams, so a hook's state for a bucket stays on
  // one stream.
  void begin_step() { next_ = 0; }
  c10::Stream next_stream() { return streams_[next_++ % streams_.size()]; }
  // Begin and end a stage on the current stream.
  void begin_stage(size_t station);
  void end_stage(size_t station);

 private:
  std::vector<c10::Stream> streams_;
  size_t next_ = 0;
  std::vector<c10::Event> ended_;  // by station: the end of its last stage
};

// A point of a stream, to order work that passes from one lane to another without a
// collective.
class StreamMark {
 public:
  StreamMark() = default;
  // Marks the current stream of the hook that runs on this thread. Empty if it computes on
  // the CPU, or if none runs here.
  static StreamMark here();
  // The same without exceptions: if the device has failed, wait() throws its error.
  static StreamMark here_or_error() noexcept;
  // Makes the current stream wait until the marked one has reached the mark.
  void wait() const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::exception_ptr error_;
};

// While it lives, the hook that runs on this thread has lanes with streams of their own.
// Null: it has none.
class OnDeviceLanes {
 public:
  explicit OnDeviceLanes(const DeviceLanes* lanes);
  ~OnDeviceLanes();
  OnDeviceLanes(const OnDeviceLanes&) = delete;
  OnDeviceLanes& operator=(const OnDeviceLanes&) = delete;

 private:
  const std::optional<c10::Device> before_;
};

}  // namespace brigade::engine
