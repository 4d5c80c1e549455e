#include "engine/failure/device_work.h"

#include "torch_port/nccl_backend.h"

namespace brigade::engine {

void DeviceWork::add(c10::Stream stream, Bucket bucket) {
  std::lock_guard lock(mutex_);
  if (spare_.empty()) spare_.emplace_back(stream.device_type());
  last_ = bucket;
  issued_.push_back({std::move(spare_.back()), {bucket, Clock::now()}});
  spare_.pop_back();
  issued_.back().end.record(stream);
}

DeviceWork::Bucket DeviceWork::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

std::optional<DeviceWork::Oldest> DeviceWork::oldest() {
  std::lock_guard lock(mutex_);
  bool progress = false;
  while (!issued_.empty() && torch_port::has_come_to(issued_.front().end)) {
    spare_.push_back(std::move(issued_.front().end));
    issued_.pop_front();
    progress = true;
  }
  if (issued_.empty()) return std::nullopt;
  Oldest& front = issued_.front().what;
  if (progress) front.started = Clock::now();
  return front;
}

}  // namespace brigade::engine
