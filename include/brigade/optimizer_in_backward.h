// SPDX-License-Identifier: BSD-3-Clause
// Optimizers that step in the backward pass; clipping by norm; gradient scaling.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/optim.h"
#include "brigade/process_group.h"

namespace brigade::optim {

// ---- Steps in the backward pass ---------------------------------------------------------
//
// An optimizer can step while gradients still arrive: a parameter changes as soon as its
// bucket is reduced.
//
//   auto adam = std::make_shared<brigade::optim::Adam>(brigade::optim::AdamOptions{});
//   brigade::optim::apply_optimizer_in_backward(ddp, adam);
//   loss(ddp->forward(data), target).backward();  // reduces, steps, drops the gradients

struct StepOptions {
  // > 0. Every element of a reduced gradient is clamped to [-value, value] before the step.
  std::optional<double> clip_grad_value = {};
  // > 0. The gradients of this optimizer's parameters are multiplied by clip_grad_norm /
  // (norm + 1e-6), if that is below 1, where norm is the norm of all of them. It is known
  // only when the last bucket is reduced, so all steps come then, and communication hides
  // none of them.
  std::optional<double> clip_grad_norm = {};
};

namespace detail {
BRIGADE_API std::shared_ptr<Hook> hook_then(std::shared_ptr<Hook> hook, Stepper stepper,
                                            const std::vector<at::Tensor>& parameters,
                                            const StepOptions& options);
BRIGADE_API void attach(DdpCore& core, Stepper stepper,
                        const std::vector<at::Tensor>& parameters,
                        const StepOptions& options);
}  // namespace detail

// Returns a hook that reduces a bucket as `hook` does, and then steps those of its
// parameters that are in `parameters`; an empty list means all. Gradients are still there
// after backward(); do not step with them again. Parameters that no rank used in a pass do
// not step, and nothing steps under no_sync. The hook's state is the inner hook's; the
// optimizer keeps its own. All ranks must do this, with equal optimizers. Throws
// ConfigError for bad options.
template <class T>
std::shared_ptr<Hook> hook_then_optimizer(std::shared_ptr<Hook> hook,
                                          std::shared_ptr<T> optimizer,
                                          const std::vector<at::Tensor>& parameters = {},
                                          const StepOptions& options = {}) {
  return detail::hook_then(std::move(hook), stepper_of(std::move(optimizer)), parameters,
                           options);
}

// Does the same behind any hook that the model has now or later. These parameters have no
// gradients when backward() returns; without bucket views a gradient is dropped as soon as
// it is in its bucket, so they are never all in memory at once. Parameters without an
// optimizer keep their gradients. May be called again for other parameters. Parameters that
// DistributedDataParallel ignores, or that need no gradient, are left alone. To be called
// between iterations, on all ranks. Throws ConfigError for bad options, for a parameter
// that has an optimizer already, and if no parameter is left.
template <class T>
void apply_optimizer_in_backward(DdpCore& core, std::shared_ptr<T> optimizer,
                                 const std::vector<at::Tensor>& parameters = {},
                                 const StepOptions& options = {}) {
  detail::attach(core, stepper_of(std::move(optimizer)), parameters, options);
}
template <class Ddp, class T>
requires requires(Ddp& ddp) { ddp->core(); }
void apply_optimizer_in_backward(Ddp& ddp, std::shared_ptr<T> optimizer,
                                 const std::vector<at::Tensor>& parameters = {},
                                 const StepOptions& options = {}) {
  apply_optimizer_in_backward(ddp->core(), std::move(optimizer), parameters, options);
}

// ---- Clipping by norm -------------------------------------------------------------------
//
// clip_grad_norm clips the gradients of a model:
//
//   loss.backward();
//   const double norm = brigade::optim::clip_grad_norm(ddp, 1.0);
//   optimizer.step();
//
// It reads the gradients once, and writes them only if they are clipped. For optimizers in
// the backward pass there is StepOptions::clip_grad_norm.

// To be called between backward() and the step. Multiplies the gradients of all parameters
// that the model trains by max_norm / (norm + 1e-6), if that is below 1, and returns the
// norm before. Equals torch::nn::utils::clip_grad_norm_(parameters, max_norm), to a
// relative 1e-6. Not collective: the gradients are averaged, so all ranks find the same
// bits. Changes of gradients since backward() count: a mask, or GradScaler::unscale_.
// Throws ConfigError unless max_norm is more than 0.
BRIGADE_API double clip_grad_norm(DdpCore& core, double max_norm);
template <class Ddp>
requires requires(Ddp& ddp) { ddp->core(); }
double clip_grad_norm(Ddp& ddp, double max_norm) {
  return clip_grad_norm(ddp->core(), max_norm);
}

}  // namespace brigade::optim

namespace brigade {

// ---- Gradient scaling -------------------------------------------------------------------
//
// GradScaler multiplies the loss by a scale, so that small gradients survive a backward
// pass in fp16, and divides the gradients by it before the optimizer steps. If gradients
// overflow, all ranks skip the step, and the scale becomes smaller.
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

// The state between two steps, as a checkpoint stores it.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int64_t growth_interval = 0;
  int64_t growth_tracker = 0;  // steps in a row without overflow
};

// Optimizers in the backward pass can't use it: they step before overflows of later buckets
// are known. Not thread-safe.
class BRIGADE_API GradScaler {
 public:
  // With a group, an overflow on one rank counts on all ranks; step() and unscale_() are
  // then collective. Without a group each rank looks at its own gradients only, which is
  // enough if all gradients are averaged. Throws ConfigError for a bad option.
  explicit GradScaler(const GradScalerOptions& options = {}, ProcessGroup group = {});

  // The loss, or losses, times the scale.
  at::Tensor scale(const at::Tensor& loss);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& losses);

  // Divides the gradients by the scale and looks for values that are not finite. May be
  // called once before each step(), which otherwise does it itself. Throws Error if it is
  // called twice or before scale(), and for fp16 gradients.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Steps the optimizer if all gradients are finite, and returns whether they were. To be
  // called once before each update().
  bool step(torch::optim::Optimizer& optimizer);

  // The same for any other optimizer. `parameters` are those that it steps; the scaler
  // identifies the optimizer by them.
  void unscale_(const std::vector<at::Tensor>& parameters);
  bool step(const std::vector<at::Tensor>& parameters,
            const std::function<void()>& step_all);
  // The same for an optimizer of brigade::optim: steps each of `parameters` that has a
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
  // If not enabled, there is no state, and load_state does nothing. It throws ConfigError
  // for a bad value.
  std::optional<GradScalerState> state() const;
  void load_state(const GradScalerState& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    at::Tensor overflow;  // not zero: a value is not finite
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
