// Host memory for messages, used again and again: fresh memory from the system costs as
// much as a copy of it, page by page.
#pragma once
#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace brigade::base {

// Thread-safe.
class BufferPool {
 public:
  // One dimension of bytes, with any content. On a device, where the allocator itself keeps
  // memory and knows the streams, a new tensor each time.
  at::Tensor take(int64_t bytes, at::Device device);
  // Only what nobody reads or writes any more: after an error, don't.
  void give_back(at::Tensor memory);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> spare_;
};

}  // namespace brigade::base
