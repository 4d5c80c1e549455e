#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <charconv>

#include "base/huge_pages.h"
#include "brigade/optim.h"

namespace brigade::optim {
namespace {

constexpr const char* kOptimizerKey = "optimizer";

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }
std::string look_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes());
}

// A kernel for many parameters takes them and their gradients as arrays in one order.
bool fits_on_gpu(const SlotStep& step) {
  return step.parameter.is_cuda() && step.gradient.is_cuda() &&
         step.gradient.layout() == at::kStrided && step.parameter.is_floating_point() &&
         step.parameter.is_non_overlapping_and_dense() &&
         step.parameter.strides() == step.gradient.strides();
}

}  // namespace

at::Tensor& Slots::tensor(size_t index, double fill) {
  at::Tensor& tensor = tensors[index];
  if (!tensor.defined()) {
    const auto options = parameter.options().requires_grad(false);
    tensor = parameter.is_contiguous()
                 ? base::empty_in_huge_pages(parameter.sizes(), options).fill_(fill)
                 : at::full_like(parameter, fill, options);
  }
  return tensor;
}

void Optimizer::check(const at::Tensor& parameter, const at::Tensor& gradient) const {
  if (!parameter.defined() || !gradient.defined()) {
    throw ConfigError(name() + ": step_param got no " +
                      (parameter.defined() ? "gradient" : "parameter"));
  }
  if (parameter.sizes() != gradient.sizes()) {
    throw ConfigError(name() + ": a gradient of shape " + shape_of(gradient) +
                      " for a parameter of shape " + shape_of(parameter));
  }
  if (gradient.is_sparse() && !takes_sparse()) {
    throw ConfigError(name() +
                      ": can't step with a sparse gradient; use sgd or adagrad for this "
                      "parameter, or an embedding without sparse gradients");
  }
}

void Optimizer::step_param(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parameter.defined() && parameter.is_cuda())
    return step_params({{parameter, gradient}});
  check(parameter, gradient);
  at::NoGradGuard no_grad;
  SlotStep begun = begin_step({parameter, gradient});
  step(begun.parameter, begun.gradient, *begun.slots);
}

SlotStep Optimizer::begin_step(const ParameterStep& step) {
  Slots& slots = slots_of(step.parameter);
  ++slots.step;
  const at::ScalarType dtype = step.parameter.scalar_type();
  return {step.parameter,
          step.gradient.scalar_type() == dtype ? step.gradient : step.gradient.to(dtype),
          &slots};
}

void Optimizer::step_params(const std::vector<ParameterStep>& steps) {
  for (const ParameterStep& each : steps) check(each.parameter, each.gradient);
  at::NoGradGuard no_grad;
  // Steps by device and dtype: a kernel takes only one of each.
  std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::vector<SlotStep>> on_gpu;
  for (const ParameterStep& each : steps) {
    SlotStep begun = begin_step(each);
    if (fits_on_gpu(begun)) {
      on_gpu[{begun.parameter.device().index(), begun.parameter.scalar_type()}].push_back(
          std::move(begun));
    } else {
      step(begun.parameter, begun.gradient, *begun.slots);
    }
  }
  for (auto& [kind, list] : on_gpu) {
    if (step_on_gpu(list)) continue;
    for (SlotStep& begun : list) step(begun.parameter, begun.gradient, *begun.slots);
  }
}

Slots& Optimizer::slots_of(const at::Tensor& parameter) {
  std::lock_guard lock(mutex_);
  Slots& slots = table_[parameter.unsafeGetTensorImpl()];  // a reference stays valid
  if (!slots.parameter.defined()) {
    slots.parameter = parameter;
    slots.tensors.resize(slot_names().size());
  }
  return slots;
}

OptimizerState Optimizer::state(const NamedParameters& parameters) const {
  OptimizerState state;
  state.values[kOptimizerKey] = name();
  save_options(parameters, state.values);
  const auto names = slot_names();
  std::lock_guard lock(mutex_);
  for (const auto& [name, parameter] : parameters) {
    const auto found = table_.find(parameter.unsafeGetTensorImpl());
    if (found == table_.end()) continue;
    const Slots& slots = found->second;
    state.values[name + ".step"] = std::to_string(slots.step);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!slots.tensors[i].defined()) continue;
      state.tensors[name + "." + std::string(names[i])] = slots.tensors[i];
    }
  }
  return state;
}

void Optimizer::load_state(const OptimizerState& state, const NamedParameters& parameters) {
  read_state(state, parameters)();
}

std::function<void()> Optimizer::read_state(const OptimizerState& state,
                                            const NamedParameters& parameters) {
  const auto kind = state.values.find(kOptimizerKey);
  if (kind == state.values.end() || kind->second != name()) {
    throw ConfigError(name() + ": the state is of " +
                      (kind == state.values.end() ? "no optimizer" : kind->second));
  }
  auto table = std::make_shared<std::unordered_map<const c10::TensorImpl*, Slots>>();
  for (const auto& [name, parameter] : parameters) {
    if (!state.values.count(name + ".step")) continue;  // the parameter was never stepped
    (*table)[parameter.unsafeGetTensorImpl()] = read_slots(state, name, parameter);
  }
  return [this, table, parameters, set_options = read_options(parameters, state.values)] {
    std::lock_guard lock(mutex_);
    for (const auto& [name, parameter] : parameters) {
      table_.erase(parameter.unsafeGetTensorImpl());
    }
    table_.merge(*table);
    set_options();
  };
}

Slots Optimizer::read_slots(const OptimizerState& state, const std::string& parameter_name,
                            const at::Tensor& parameter) const {
  double step = 0;
  detail::parse(state.values, parameter_name + ".step", step);
  Slots slots{parameter, static_cast<int64_t>(step), {}};
  for (std::string_view kind : slot_names()) {
    at::Tensor& mine = slots.tensors.emplace_back();
    const auto found = state.tensors.find(parameter_name + "." + std::string(kind));
    if (found == state.tensors.end()) continue;
    const at::Tensor& saved = found->second;
    if (saved.sizes() != parameter.sizes() ||
        saved.scalar_type() != parameter.scalar_type()) {
      throw ConfigError(name() + ": '" + found->first + "' is " + look_of(saved) +
                        ", but the parameter is " + look_of(parameter));
    }
    mine = at::empty_like(parameter, at::TensorOptions().requires_grad(false));
    mine.copy_(saved);
  }
  return slots;
}

void Optimizer::reset() {
  std::lock_guard lock(mutex_);
  table_.clear();
}

namespace detail {

std::string text_of(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}
std::string text_of(bool value) { return value ? "1" : "0"; }

void parse(const std::map<std::string, std::string>& values, const std::string& key,
           double& value) {
  const auto found = values.find(key);
  if (found == values.end())
    throw ConfigError("the optimizer's state has no '" + key + "'");
  const std::string& text = found->second;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    throw ConfigError("the optimizer's state has '" + text + "' for '" + key +
                      "', expected a number");
  }
}
void parse(const std::map<std::string, std::string>& values, const std::string& key,
           bool& value) {
  double number = 0;
  parse(values, key, number);
  value = number != 0;
}

void require(bool holds, const char* optimizer, const char* field, double value,
             const char* rule) {
  if (holds) return;
  throw ConfigError(std::string(optimizer) + ": " + field + " is " + text_of(value) +
                    ", but must be " + rule);
}

}  // namespace detail
}  // namespace brigade::optim
