#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>

#include "brigade/optimizer_in_backward.h"

namespace brigade {
namespace {

void require(bool holds, const char* field, double value, const char* rule) {
  if (holds) return;
  throw ConfigError(c10::str("GradScaler: ", field, " is ", value, ", but must be ", rule));
}

void check(const GradScalerOptions& options) {
  require(options.init_scale > 0 && std::isfinite(options.init_scale), "init_scale",
          options.init_scale, "greater than 0, such as 65536");
  require(options.growth_factor > 1, "growth_factor", options.growth_factor,
          "greater than 1, such as 2");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
          options.backoff_factor, "between 0 and 1, such as 0.5");
  require(options.growth_interval > 0, "growth_interval",
          static_cast<double>(options.growth_interval), "at least 1, such as 2000");
}

std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

const void* name_of(const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) throw ConfigError("GradScaler: the list of parameters is empty");
  return parameters.front().unsafeGetTensorImpl();
}

// Unscales in place. Returns the sum of all devices' overflows, on the device of `inverse`.
at::Tensor unscale_all(const std::map<std::string, std::vector<at::Tensor>>& gradients,
                       const at::Tensor& inverse) {
  at::Tensor overflow = at::zeros_like(inverse);
  for (const auto& [kind, list] : gradients) {
    const at::Device device = list.front().device();
    at::Tensor found = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found, inverse.to(device));
    overflow += found.to(overflow.device());
  }
  return overflow;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, ProcessGroup group)
    : options_(options), group_(std::move(group)) {
  check(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  if (!scale_.defined()) {
    const at::TensorOptions on(loss.device());
    scale_ = at::full({}, options_.init_scale, on.dtype(at::kFloat));
    tracker_ = at::full({}, first_tracker_, on.dtype(at::kInt));
  }
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}

void GradScaler::for_each_gradient(
    const std::vector<at::Tensor>& parameters,
    const std::function<void(const at::Tensor&, const at::Tensor&)>& visit) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) visit(parameter, parameter.grad());
  }
}

void GradScaler::require_scale(const char* function) const {
  if (!scale_.defined()) {
    throw Error(std::string("GradScaler: ") + function +
                " came before scale(loss); backward() must start from the scaled loss");
  }
}

void GradScaler::unscale(const void* optimizer, const std::vector<at::Tensor>& parameters) {
  require_scale("unscale_()");
  Progress& progress = progress_[optimizer];
  if (progress.stage != Stage::ready) {
    throw Error(
        progress.stage == Stage::unscaled
            ? "GradScaler: unscale_() was called twice for one optimizer since the "
              "last update(), which would divide by the scale twice"
            : "GradScaler: unscale_() was called after step(); call update() at the "
              "end of each iteration");
  }
  std::map<std::string, std::vector<at::Tensor>> gradients;  // by device and dtype
  for_each_gradient(parameters, [&](const at::Tensor&, const at::Tensor& gradient) {
    if (gradient.scalar_type() == at::kHalf) {
      throw Error(
          "GradScaler: a gradient is fp16, and unscaled would lose what scaling saved. "
          "Keep "
          "the model in fp32; DdpOptions::mixed_precision computes in fp16 all the same");
    }
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    gradients[c10::str(values.device(), values.dtype())].push_back(values);
  });
  at::NoGradGuard no_grad;
  // The reciprocal is computed in double, as Python does: in float it may differ by a bit.
  at::Tensor overflow =
      unscale_all(gradients, scale_.to(at::kDouble).reciprocal().to(at::kFloat));
  bool any = !gradients.empty();
  if (group_ && group_.size() > 1) {
    at::Tensor sums = at::stack({overflow, at::full_like(overflow, any ? 1.0 : 0.0)});
    group_.all_reduce(sums);
    overflow = sums[0];
    any = any || sums[1].item<float>() > 0;  // a rank may have no parameters of its own
  }
  if (!any) {
    throw Error(
        "GradScaler: no parameter of the optimizer has a gradient. step() comes after "
        "backward(); with an optimizer in the backward pass a GradScaler can't be used, "
        "because parameters have stepped before an overflow elsewhere is known");
  }
  progress = {Stage::unscaled, overflow};
}

bool GradScaler::step(const void* optimizer, const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& step_all) {
  if (!options_.enabled) {
    step_all();
    return true;
  }
  require_scale("step()");
  if (progress_[optimizer].stage == Stage::stepped) {
    throw Error(
        "GradScaler: step() was called twice for one optimizer since the last update()");
  }
  if (progress_[optimizer].stage == Stage::ready) unscale(optimizer, parameters);
  Progress& progress = progress_[optimizer];
  const bool finite = progress.overflow.item<float>() == 0;
  if (finite) step_all();
  progress.stage = Stage::stepped;
  return finite;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) unscale(&optimizer, parameters_of(optimizer));
}
bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(&optimizer, parameters_of(optimizer), [&] { optimizer.step(); });
}
void GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  if (options_.enabled) unscale(name_of(parameters), parameters);
}
bool GradScaler::step(const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& step_all) {
  return step(name_of(parameters), parameters, step_all);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  require_scale("update()");
  if (new_scale) {
    require(*new_scale > 0 && std::isfinite(*new_scale), "the new scale", *new_scale,
            "greater than 0");
    scale_.fill_(*new_scale);
  } else {
    at::Tensor overflow;
    for (const auto& [optimizer, progress] : progress_) {
      if (!progress.overflow.defined()) continue;
      overflow = overflow.defined() ? overflow + progress.overflow : progress.overflow;
    }
    if (!overflow.defined()) {
      throw Error(
          "GradScaler: update() came without a step() or unscale_() since the last");
    }
    at::_amp_update_scale_(scale_, tracker_, overflow, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  }
  progress_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

std::optional<GradScalerState> GradScaler::state() const {
  if (!options_.enabled) return std::nullopt;
  return GradScalerState{get_scale(), options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval,
                         tracker_.defined() ? tracker_.item<int64_t>() : first_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  if (!options_.enabled) return;
  const GradScalerOptions loaded{.init_scale = state.scale,
                                 .growth_factor = state.growth_factor,
                                 .backoff_factor = state.backoff_factor,
                                 .growth_interval = state.growth_interval};
  check(loaded);
  require(state.growth_tracker >= 0, "growth_tracker",
          static_cast<double>(state.growth_tracker), "at least 0");
  options_ = loaded;
  first_tracker_ = state.growth_tracker;
  if (scale_.defined()) {
    scale_.fill_(state.scale);
    tracker_.fill_(state.growth_tracker);
  }
  progress_.clear();
}

}  // namespace brigade
