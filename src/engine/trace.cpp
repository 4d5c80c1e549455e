#include "engine/trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace brigade::engine {
namespace {

DevicePoint recorded(c10::Device device) {
  auto point = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  point->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return point;
}

}  // namespace

DevicePoint Trace::point(c10::Device device) {
  std::lock_guard lock(mutex_);
  if (!zero_) {
    zero_ = recorded(device);
    zero_->synchronize();
    zero_time_ = Clock::now();
  }
  return recorded(device);
}

void Trace::add(const TraceEvent& event, DevicePoint begin, DevicePoint end) {
  std::lock_guard lock(mutex_);
  on_device_.push_back({event, std::move(begin), std::move(end)});
}

Trace::Clock::time_point Trace::time_of(const c10::Event& point) const {
  point.synchronize();
  const std::chrono::duration<double, std::milli> since(zero_->elapsedTime(point));
  return zero_time_ + std::chrono::duration_cast<Clock::duration>(since);
}

void Trace::move_to(std::vector<TraceEvent>& all) {
  std::lock_guard lock(mutex_);
  all.insert(all.end(), events_.begin(), events_.end());
  events_.clear();
  for (OnDevice& each : on_device_) {
    each.event.begin = time_of(*each.begin);
    each.event.end = time_of(*each.end);
    all.push_back(each.event);
  }
  on_device_.clear();
}

}  // namespace brigade::engine
