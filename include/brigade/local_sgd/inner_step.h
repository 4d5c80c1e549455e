// SPDX-License-Identifier: BSD-3-Clause
// One step of an optimizer of any kind, for what does something after each.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "brigade/export.h"
#include "brigade/optim/functional.h"

namespace brigade::optim {

using InnerStep = std::function<void()>;

namespace detail {
BRIGADE_API InnerStep step_each(
    std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step_param,
    std::vector<at::Tensor> parameters);
}

// An optimizer of torch::optim (or anything with step()) steps what it was made with; one
// of brigade::optim (or anything with step_param) steps those of `parameters` that have a
// gradient. `optimizer` must outlive the result.
template <class T>
InnerStep inner_step(T& optimizer, std::vector<at::Tensor> parameters) {
  constexpr bool steps_each = FunctionalOptimizer<T>;
  constexpr bool steps_all = requires { optimizer.step(); };
  static_assert(steps_each || steps_all,
                "this is no optimizer: it has neither step() nor step_param(const "
                "at::Tensor& parameter, const at::Tensor& gradient)");
  if constexpr (steps_all) {
    return [&optimizer] { optimizer.step(); };
  } else if constexpr (steps_each) {
    return detail::step_each(
        [&optimizer](const at::Tensor& parameter, const at::Tensor& gradient) {
          optimizer.step_param(parameter, gradient);
        },
        std::move(parameters));
  }
}

}  // namespace brigade::optim
