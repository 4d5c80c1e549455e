// SPDX-License-Identifier: BSD-3-Clause
// Multiplies the loss by a scale, so that small gradients survive a backward pass in fp16,
// and divides the gradients by it before the optimizer steps. If gradients overflow, all
// ranks leave out the step, and the scale becomes smaller.
//
//   brigade::GradScaler scaler({}, group);
//   for (auto& batch : loader) {
//     ddp->zero_grad();
//     auto output = ddp->forward(batch.data);
//     scaler.scale(loss(output.to(at::kFloat), batch.target)).backward();
//     scaler.unscale_(optimizer);  // only to clip or to look at gradients
//     scaler.step(optimizer);
//     scaler.update();
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "brigade/export.h"
#include "brigade/optim/functional.h"
#include "brigade/process_group.h"

namespace brigade {

// Names, defaults and meaning are those of Python's torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536;  // > 0
  // The scale is multiplied by this after growth_interval steps in a row without overflow.
  double growth_factor = 2;  // > 1
  // The scale is multiplied by this after an overflow.
  double backoff_factor = 0.5;     // > 0, < 1
  int64_t growth_interval = 2000;  // > 0
  // If false, scale() and unscale_() do nothing, and step() always steps.
  bool enabled = true;
};

// As a checkpoint stores it, between two steps.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int64_t growth_interval = 0;
  int64_t growth_tracker = 0;  // steps in a row without overflow
};

// Optimizers in the backward pass can't use it: they step before an overflow elsewhere is
// known. Not thread-safe.
class BRIGADE_API GradScaler {
 public:
  // With a group, an overflow on one rank counts on all ranks; step() and unscale_() are
  // then collective. Without a group each rank judges by its own gradients, which is enough
  // if all gradients are averaged. Throws ConfigError for a bad option.
  explicit GradScaler(const GradScalerOptions& options = {}, ProcessGroup group = {});

  // The loss, or losses, times the scale.
  at::Tensor scale(const at::Tensor& loss);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& losses);

  // Divides the gradients by the scale and looks for values that are not finite. May be
  // called once before each step(), which does it otherwise. Throws Error if it is called
  // twice or before scale(), and for fp16 gradients.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Steps the optimizer if all gradients are finite, and returns whether they were. To be
  // called once before each update().
  bool step(torch::optim::Optimizer& optimizer);

  // The same for any other optimizer. `parameters` are those that it steps; the scaler
  // knows the optimizer by them.
  void unscale_(const std::vector<at::Tensor>& parameters);
  bool step(const std::vector<at::Tensor>& parameters,
            const std::function<void()>& step_all);
  // The same for an optimizer of brigade/optim. It steps each of `parameters` that has a
  // gradient.
  template <optim::FunctionalOptimizer T>
  bool step(T& optimizer, const std::vector<at::Tensor>& parameters) {
    return step(parameters, [&] {
      for_each_gradient(parameters, [&](const at::Tensor& p, const at::Tensor& gradient) {
        optimizer.step_param(p, gradient);
      });
    });
  }

  // Adapts the scale, or sets it to `new_scale`. To be called at the end of each iteration,
  // after all step()s.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const;  // 1 if not enabled
  bool is_enabled() const { return options_.enabled; }
  // The options it was made with, or those of the state it loaded.
  const GradScalerOptions& options() const { return options_; }
  // If not enabled, there is no state, and load_state does nothing. load_state throws
  // ConfigError for a bad value.
  std::optional<GradScalerState> state() const;
  void load_state(const GradScalerState& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    at::Tensor overflow;  // not zero: something is not finite
  };
  static void for_each_gradient(
      const std::vector<at::Tensor>& parameters,
      const std::function<void(const at::Tensor&, const at::Tensor&)>& visit);
  void unscale(const void* optimizer, const std::vector<at::Tensor>& parameters);
  bool step(const void* optimizer, const std::vector<at::Tensor>& parameters,
            const std::function<void()>& step_all);
  void require_scale(const char* function) const;

  GradScalerOptions options_;
  ProcessGroup group_;
  // Floats on the device of the first loss, so that the host need not wait for a GPU.
  at::Tensor scale_, tracker_;
  int64_t first_tracker_ = 0;
  std::map<const void*, Progress> progress_;  // by optimizer
};

}  // namespace brigade
