// Hooks that can tell the norm of what they give without reading it once more.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "brigade/hook.h"

namespace brigade {

class MeasuringHook : public Hook {
 public:
  // As reduce(). `squares`: null, or becomes the sum of squares of the result, equal on all
  // ranks; it stays empty where the hook does not know it.
  virtual Task<at::Tensor> reduce_and_measure(Bucket bucket, Comm& comm,
                                              std::optional<double>* squares) = 0;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) final {
    return reduce_and_measure(std::move(bucket), comm, nullptr);
  }
};

}  // namespace brigade
