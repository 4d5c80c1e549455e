#include "engine/trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace brigade::engine {
namespace {

DevicePoint recorded(c10::Device device) {
  auto point = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  point->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return point;
}

}  // namespace

void Trace::compare_clocks(c10::Device device) {
  if (zero_) return;
  DevicePoint zero = recorded(device);
  zero->synchronize();  // if it throws, the next call compares the clocks
  zero_time_ = Clock::now();
  zero_ = std::move(zero);
}

DevicePoint Trace::point(c10::Device device) {
  std::lock_guard lock(mutex_);
  compare_clocks(device);
  return recorded(device);
}

void Trace::add(const TraceEvent& event, DevicePoint begin, DevicePoint end) {
  std::lock_guard lock(mutex_);
  compare_clocks(begin->device());
  on_device_.push_back({event, std::move(begin), std::move(end)});
}

Trace::Clock::time_point Trace::time_of(const c10::Event& zero,
                                        const c10::Event& point) const {
  point.synchronize();
  const std::chrono::duration<double, std::milli> since(zero.elapsedTime(point));
  return zero_time_ + std::chrono::duration_cast<Clock::duration>(since);
}

void Trace::move_to(std::vector<TraceEvent>& all) {
  std::lock_guard lock(mutex_);
  all.insert(all.end(), events_.begin(), events_.end());
  events_.clear();
  // Events that cannot be read, because the device has failed, are dropped.
  const std::vector<OnDevice> on_device = std::exchange(on_device_, {});
  // Long times of a device are coarse, so the clocks are compared again.
  const DevicePoint zero = std::exchange(zero_, nullptr);
  for (const OnDevice& each : on_device) {
    TraceEvent event = each.event;
    event.begin = time_of(*zero, *each.begin);
    event.end = time_of(*zero, *each.end);
    all.push_back(event);
  }
}

}  // namespace brigade::engine
