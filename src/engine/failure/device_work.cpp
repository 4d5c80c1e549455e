#include "engine/failure/device_work.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::engine {

void DeviceWork::add(c10::Stream stream, std::string description) {
  std::lock_guard lock(mutex_);
  if (spare_.empty()) spare_.emplace_back(stream.device_type());
  last_ = description;
  issued_.push_back({std::move(spare_.back()), {Clock::now(), std::move(description)}});
  spare_.pop_back();
  issued_.back().end.record(stream);
}

std::string DeviceWork::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

std::optional<Watcher::Watched> DeviceWork::oldest() {
  std::lock_guard lock(mutex_);
  bool progress = false;
  while (!issued_.empty() && issued_.front().end.query()) {
    spare_.push_back(std::move(issued_.front().end));
    issued_.pop_front();
    progress = true;
  }
  if (issued_.empty()) return std::nullopt;
  Watcher::Watched& front = issued_.front().what;
  if (progress) front.started = std::max(front.started, Clock::now());
  return front;
}

}  // namespace brigade::engine
