// SPDX-License-Identifier: BSD-3-Clause
// For hooks that can tell the norm of their result without reading it once more: clipping
// of gradients then costs no pass of its own over them.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// In place of Hook: a hook derives from it and writes reduce_and_measure() for reduce().
class BRIGADE_API MeasuringHook : public Hook {
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
