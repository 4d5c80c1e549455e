#include "zero/messages.h"

#include <ATen/ATen.h>

namespace brigade::optim {

MessageMemory::Lent::Lent(MessageMemory& owner) : owner_(owner) {
  std::unique_lock lock(owner.mutex_);
  owner.returned_.wait(lock, [&] { return !owner.free_.empty(); });
  memory_ = std::move(owner.free_.back());
  owner.free_.pop_back();
}

MessageMemory::Lent::~Lent() {
  std::lock_guard lock(owner_.mutex_);
  owner_.free_.push_back(std::move(memory_));
  owner_.returned_.notify_one();
}

at::Tensor MessageMemory::Lent::take(int64_t length, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty({length}, options);
  const int64_t bytes = length * static_cast<int64_t>(options.dtype().itemsize());
  {
    std::lock_guard lock(owner_.mutex_);
    owner_.largest_ = std::max(owner_.largest_, bytes);
  }
  if (!memory_.defined() || memory_.numel() < bytes)
    memory_ = at::empty({bytes}, at::kByte);
  return memory_.narrow(0, 0, bytes).view(c10::typeMetaToScalarType(options.dtype()));
}

void MessageMemory::trim() {
  std::lock_guard lock(mutex_);
  for (at::Tensor& each : free_) {
    if (largest_ > 0 && each.defined() && each.numel() > largest_) each = at::Tensor();
  }
  largest_ = 0;
}

void MessageMemory::forget() {
  std::lock_guard lock(mutex_);
  for (at::Tensor& each : free_) each = at::Tensor();
}

}  // namespace brigade::optim
