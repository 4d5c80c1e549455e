// Host memory for messages, which is reused: new memory from the system costs as much as a
// copy of it, page by page.
#pragma once
#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace brigade::base {

// Keeps no more buffers than were taken at the same time. Thread-safe.
class BufferPool {
 public:
  // Returns one dimension of bytes with any content: the smallest spare buffer that is
  // large enough, or new memory. On a device it is always new: the allocator there keeps
  // memory itself, and knows the streams.
  at::Tensor take(int64_t bytes, at::Device device);
  // REQUIRES: `memory` is what take() returned, and nobody reads or writes it any more.
  // After an error do not give it back: a collective may still write there.
  void give_back(at::Tensor memory);
  // Frees the spare buffers that are larger than any that was taken since the last call:
  // the first buckets of a model are larger than later ones.
  void trim();

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> spare_;
  int64_t largest_ = 0;  // bytes that were taken at once since trim()
};

}  // namespace brigade::base
