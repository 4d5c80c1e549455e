// A bucket's values as float32, whatever its dtype.
#pragma once
#include <ATen/ATen.h>

namespace brigade {

// The buffer itself if it is float32, else a copy that give_back() writes back.
class FloatValues {
 public:
  explicit FloatValues(at::Tensor buffer)
      : buffer_(std::move(buffer)), values_(buffer_.to(at::kFloat)) {}
  const at::Tensor& values() const { return values_; }
  at::Tensor give_back() {
    if (!values_.is_same(buffer_)) buffer_.copy_(values_);
    return buffer_;
  }

 private:
  at::Tensor buffer_;
  at::Tensor values_;
};

}  // namespace brigade
