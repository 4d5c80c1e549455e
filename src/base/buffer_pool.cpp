#include "base/buffer_pool.h"

#include <ATen/ATen.h>

#include "base/huge_pages.h"

namespace brigade::base {

at::Tensor BufferPool::take(int64_t bytes, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  if (device.is_cpu()) {
    std::lock_guard lock(mutex_);
    // The last given back is the likeliest to be in a cache.
    for (size_t i = spare_.size(); i-- > 0;) {
      if (spare_[i].numel() != bytes) continue;
      at::Tensor found = std::move(spare_[i]);
      spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    // Buckets come in the same sizes step after step; when none fits they have changed, and
    // what was kept for the old ones goes, one for one.
    if (!spare_.empty()) spare_.erase(spare_.begin());
  }
  return empty_in_huge_pages(bytes, options);
}

void BufferPool::give_back(at::Tensor memory) {
  if (!memory.is_cpu()) return;
  std::lock_guard lock(mutex_);
  spare_.push_back(std::move(memory));
}

}  // namespace brigade::base
