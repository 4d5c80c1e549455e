// What stations are on a device: streams and events instead of threads.
//
// With NCCL a hook runs from beginning to end on one thread of the host, which never waits;
// what happens when is up to the device. So that lanes overlap there as they do on the
// host:
// - A *lane* has a stream, and all its work is there. Memory that it gives back is used
//   again in the stream's order. Lanes take turns with a few streams.
// - A *station* has an event and, up to a few, a communicator. The k-th stage of a lane
//   begins, on the device, when the k-th stage of the lane before it has ended there. So
//   two buckets are never in the same stage of a hook, on the device either, and one
//   bucket's second collective is on the wire beside the next one's first.
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
  // Steps with equal lanes give them equal streams: what a hook keeps for a bucket stays on
  // one stream.
  void begin_step() { next_ = 0; }
  c10::Stream next_stream() { return streams_[next_++ % streams_.size()]; }
  // Of the current stream.
  void begin_stage(size_t station);
  void end_stage(size_t station);

 private:
  std::vector<c10::Stream> streams_;
  size_t next_ = 0;
  std::vector<c10::Event> ended_;  // by station: its last stage
};

// Where a stream stood. For what passes from one lane to another without a collective.
class StreamMark {
 public:
  StreamMark() = default;
  // Of the current stream of the hook that runs on this thread. Empty if it computes on the
  // CPU, or if none runs here.
  static StreamMark here();
  // The same where nothing may be thrown: if the device has failed, wait() throws that.
  static StreamMark here_or_error() noexcept;
  // The current stream goes on when the marked one has come this far.
  void wait() const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::exception_ptr error_;
};

// While a hook runs on this thread whose lanes have streams of their own. Null: they have
// not.
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
