#include "base/buffer_pool.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/huge_pages.h"

namespace brigade::base {

at::Tensor BufferPool::take(int64_t bytes, at::Device device) {
  if (device.is_cpu()) {
    std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, bytes);
    auto best = spare_.end();
    for (auto each = spare_.begin(); each != spare_.end(); ++each) {
      // Among equal buffers, the last one given back is the likeliest to be in a cache.
      if (each->numel() >= bytes &&
          (best == spare_.end() || each->numel() <= best->numel()))
        best = each;
    }
    if (best != spare_.end()) {
      const at::Tensor found = std::move(*best);
      spare_.erase(best);
      return found.narrow(0, 0, bytes);
    }
    // All are too small. One is freed for each new one, so that their number stays.
    if (!spare_.empty()) spare_.erase(spare_.begin());
  }
  return empty_in_huge_pages(bytes, at::TensorOptions().dtype(at::kByte).device(device));
}

void BufferPool::give_back(at::Tensor memory) {
  if (!memory.is_cpu()) return;
  const auto bytes = static_cast<int64_t>(memory.storage().nbytes());
  std::lock_guard lock(mutex_);
  spare_.push_back(memory.as_strided({bytes}, {1}, 0));
}

void BufferPool::trim() {
  std::lock_guard lock(mutex_);
  const int64_t largest = std::exchange(largest_, 0);
  if (largest == 0) return;
  std::erase_if(spare_, [&](const at::Tensor& each) { return each.numel() > largest; });
}

}  // namespace brigade::base
