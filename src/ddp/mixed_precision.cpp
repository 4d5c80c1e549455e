#include "ddp/mixed_precision.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "brigade/compose_hooks.h"
#include "brigade/ddp_core.h"

namespace brigade {
namespace {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return "fp16";
    case at::kBFloat16:
      return "bf16";
    case at::kFloat:
      return "fp32";
    case at::kDouble:
      return "fp64";
    default:
      return nullptr;
  }
}

template <class Visitor>
void for_each_field(const MixedPrecision& dtypes, Visitor&& visit) {
  visit("param", dtypes.param_dtype);
  visit("reduce", dtypes.reduce_dtype);
  visit("buffer", dtypes.buffer_dtype);
}

}  // namespace

std::string MixedPrecision::describe() const {
  std::string text;
  for_each_field(*this, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    const char* name = name_of(*dtype);
    text += std::string(text.empty() ? "" : ", ") + field + " " +
            (name ? name : c10::toString(*dtype));
  });
  return text;
}

void check(const MixedPrecision& dtypes) {
  bool any = false;
  for_each_field(dtypes, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    any = true;
    if (!name_of(*dtype)) {
      throw ConfigError(c10::str("mixed_precision.", field, "_dtype is ", *dtype,
                                 ", but must be at::kHalf, at::kBFloat16, at::kFloat or "
                                 "at::kDouble"));
    }
  });
  if (!any) {
    throw ConfigError(
        "mixed_precision sets no dtype; set param_dtype, for instance to at::kBFloat16, or "
        "leave mixed_precision out");
  }
}

std::shared_ptr<Hook> reduce_in(at::ScalarType dtype, std::shared_ptr<Hook> inner) {
  if (!inner) inner = make_hook("allreduce", average);
  return in_dtype(dtype, std::move(inner), "", std::string(" in ") + name_of(dtype));
}

namespace {

namespace autograd = torch::autograd;

bool differs(const at::Tensor& tensor, const std::optional<at::ScalarType>& dtype) {
  return dtype && tensor.defined() && at::isFloatingType(tensor.scalar_type()) &&
         tensor.scalar_type() != *dtype;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType bits = a.element_size() == 2   ? at::kShort
                              : a.element_size() == 4 ? at::kInt
                                                      : at::kLong;
  return at::equal(a.view(bits), b.view(bits));
}

[[noreturn]] void throw_changed(const std::vector<std::string>& names) {
  const std::string others =
      names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "";
  throw Error("mixed precision: parameter '" + names.front() + "'" + others +
              " changed between forward() and the end of backward(), while a "
              "low-precision copy stood in for it, so the change is lost. Change "
              "parameters (optimizer steps, loaded weights) after backward() or before "
              "forward(); for a forward pass without a backward pass use NoGradGuard");
}

}  // namespace

void LowPrecision::watch(const std::vector<at::Tensor>& trained) {
  for (const at::Tensor& parameter : trained) {
    auto node = autograd::impl::grad_accumulator(parameter);
    auto& known = accumulators_[parameter.unsafeGetTensorImpl()];
    if (known == node) continue;
    known = node;
    node->add_post_hook(std::make_unique<autograd::utils::LambdaPostHook>(
        [weak = weak_from_this()](const autograd::variable_list& outputs,
                                  const autograd::variable_list&) {
          if (auto self = weak.lock()) self->restore_at_end_of_backward();
          return outputs;
        }));
  }
}

void LowPrecision::restore_at_end_of_backward() {
  if (queued_.exchange(true)) return;
  autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    self->queued_ = false;
    self->restore();
  });
}

void LowPrecision::lower(const DdpModel& model) {
  at::NoGradGuard no_grad;
  queued_ = false;  // a failed backward pass never reached the callback
  std::vector<Lowered> chosen;
  std::vector<at::Tensor> full, low;
  const auto choose = [&](const std::string& name, const at::Tensor& tensor,
                          const std::optional<at::ScalarType>& dtype, bool is_buffer) {
    if (!differs(tensor, dtype)) return;
    // variable_data() has its own version counter: the tensor's counts changes to the copy.
    full.push_back(tensor.variable_data());
    low.push_back(at::empty_like(full.back(), *dtype));
    chosen.push_back({name, tensor, full.back(), is_buffer});
  };
  for (const DdpParameter& parameter : model.parameters) {
    choose(parameter.name, parameter.tensor, dtypes_.param_dtype, false);
  }
  if (dtypes_.buffer_dtype && model.buffers) {
    for (const auto& [name, buffer] : model.buffers()) {
      choose(name, buffer, dtypes_.buffer_dtype, true);
    }
  }
  if (chosen.empty()) return;
  at::_foreach_copy_(low, full);
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < chosen.size(); ++i) {
    Lowered& each = chosen[i];
    each.tensor.set_data(low[i]);
    keep_accumulator(each.tensor);
    each.version = each.tensor._version();
    lowered_[each.tensor.unsafeGetTensorImpl()] = std::move(each);
  }
}

// set_data drops the accumulator when the dtype changes.
void LowPrecision::keep_accumulator(const at::Tensor& tensor) const {
  const auto found = accumulators_.find(tensor.unsafeGetTensorImpl());
  if (found != accumulators_.end()) {
    autograd::impl::set_grad_accumulator(tensor, found->second);
  }
}

// Keeps the values that a pass wrote into buffers, and into parameters without a gradient.
void LowPrecision::put_back(const Lowered& lowered) const {
  at::NoGradGuard no_grad;
  at::Tensor tensor = lowered.tensor;
  if (lowered.is_buffer) {
    // Batch normalization writes without a new version. Values that it did not write keep
    // the bits that the copy lacks.
    const at::Tensor copied = lowered.full.to(tensor.scalar_type());
    lowered.full.copy_(at::where(tensor == copied, lowered.full, tensor));
  } else if (!tensor.requires_grad() && tensor._version() != lowered.version) {
    lowered.full.copy_(tensor);
  }
  tensor.set_data(lowered.full);
  keep_accumulator(tensor);
}

void LowPrecision::restore(const std::vector<at::Tensor>& parameters) {
  std::vector<std::string> changed;
  {
    std::lock_guard lock(mutex_);
    for (const at::Tensor& parameter : parameters) {
      const auto found = lowered_.find(parameter.unsafeGetTensorImpl());
      if (found == lowered_.end()) continue;
      if (parameter._version() != found->second.version)
        changed.push_back(found->second.name);
      put_back(found->second);
      lowered_.erase(found);
    }
  }
  if (!changed.empty()) throw_changed(changed);
}

void LowPrecision::restore() { restore_all(/*look_at_values=*/false); }
void LowPrecision::abandon() { restore_all(/*look_at_values=*/true); }

void LowPrecision::restore_all(bool look_at_values) {
  std::vector<std::string> changed;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, each] : lowered_) {
      const at::Tensor& tensor = each.tensor;
      if (tensor.requires_grad() &&
          (tensor._version() != each.version ||
           (look_at_values &&
            !same_bits(tensor.variable_data(), each.full.to(tensor.scalar_type()))))) {
        changed.push_back(each.name);
      }
      put_back(each);
    }
    lowered_.clear();
  }
  if (!changed.empty()) throw_changed(changed);
}

bool LowPrecision::lowered() const {
  std::lock_guard lock(mutex_);
  return !lowered_.empty();
}

void LowPrecision::cast(const std::vector<at::Tensor*>& tensors) const {
  for (at::Tensor* tensor : tensors) {
    if (differs(*tensor, dtypes_.param_dtype)) *tensor = tensor->to(*dtypes_.param_dtype);
  }
}

}  // namespace brigade
