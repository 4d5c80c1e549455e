#include "engine/comm/device_lanes.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace brigade::engine {
namespace {

// A lane's first collective, the previous lane's second one and a third lane's decoding can
// be under way at once; one more stream, so that no lane waits for one.
constexpr size_t kStreams = 4;

thread_local std::optional<c10::Device> hook_device;

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

DeviceLanes::DeviceLanes(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  for (size_t count = 0; count < kStreams; ++count)
    streams_.push_back(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true));
  for (size_t count = 0; count < kStations; ++count) ended_.emplace_back(device.type());
}

void DeviceLanes::begin_stage(size_t station) {
  ended_[std::min(station, kStations - 1)].block(current_stream(device()));
}

void DeviceLanes::end_stage(size_t station) {
  ended_[std::min(station, kStations - 1)].record(current_stream(device()));
}

StreamMark StreamMark::here() {
  StreamMark mark;
  if (!hook_device) return mark;
  mark.event_ = std::make_shared<c10::Event>(hook_device->type());
  mark.event_->record(current_stream(*hook_device));
  return mark;
}

StreamMark StreamMark::here_or_error() noexcept {
  try {
    return here();
  } catch (...) {
    StreamMark mark;
    mark.error_ = std::current_exception();
    return mark;
  }
}

void StreamMark::wait() const {
  if (error_) std::rethrow_exception(error_);
  if (event_) event_->block(current_stream(event_->device()));
}

OnDeviceLanes::OnDeviceLanes(const DeviceLanes* lanes)
    : before_(std::exchange(hook_device,
                            lanes ? std::optional(lanes->device()) : std::nullopt)) {}

OnDeviceLanes::~OnDeviceLanes() { hook_device = before_; }

}  // namespace brigade::engine
