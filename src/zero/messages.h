// Memory for the messages of the hook "zero".
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <mutex>
#include <vector>

namespace brigade::optim {

// For two buckets at a time, used again and again: for all of them it would take what ZeRO
// saves. Thread-safe.
class MessageMemory {
 public:
  // What one bucket has, while this lives. Waits until one of the two is free.
  class Lent {
   public:
    explicit Lent(MessageMemory& owner);
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent();
    // A flat tensor with any content. On a device, where the allocator itself keeps memory
    // and knows the streams, a new one each time.
    at::Tensor take(int64_t length, const at::TensorOptions& options);

   private:
    MessageMemory& owner_;
    at::Tensor memory_;
  };

  // Before each pass: lets go of what is larger than any bucket of the last one needed. The
  // first buckets are larger than those that come after.
  void trim();
  // After an error somebody may still write there.
  void forget();

 private:
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<at::Tensor> free_{2};
  int64_t largest_ = 0;  // bytes that were taken at once since trim()
};

}  // namespace brigade::optim
