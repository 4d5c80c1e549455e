// The code that the optimizers' steps share.
#pragma once
#include <ATen/ATen.h>

#include "kernels/optimizer_step.h"

namespace brigade::optim {

// Whether one pass over raw memory can do the step: element i of the parameter's memory
// must belong to element i of the gradient's.
inline bool fits_kernel(const at::Tensor& parameter, const at::Tensor& gradient) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.layout() == at::kStrided;
  };
  return plain(parameter) && plain(gradient) &&
         ((parameter.is_contiguous() && gradient.is_contiguous()) ||
          (parameter.is_non_overlapping_and_dense() &&
           parameter.strides() == gradient.strides()));
}

// REQUIRES: fits_kernel(), and tensors with the parameter's layout. The kernel gets a null
// pointer for an undefined tensor.
template <class Step>
void run_kernel(const Step& step, const at::Tensor& parameter, const at::Tensor& gradient,
                const at::Tensor& first = {}, const at::Tensor& second = {},
                const at::Tensor& third = {}) {
  const auto data = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
  };
  kernels::step(step, {data(parameter), gradient.const_data_ptr<float>(), data(first),
                       data(second), data(third), static_cast<size_t>(parameter.numel())});
  // The version shows autograd that a value it saved is gone.
  parameter.unsafeGetTensorImpl()->bump_version();
}

inline float sign_for(bool maximize) { return maximize ? -1.0f : 1.0f; }

// Returns the gradient that the formulas use.
inline at::Tensor effective(const at::Tensor& gradient, const at::Tensor& parameter,
                            bool maximize, double weight_decay) {
  at::Tensor g = maximize ? gradient.neg() : gradient;
  return weight_decay != 0 ? g.add(parameter, weight_decay) : g;
}

}  // namespace brigade::optim
