#include "optim/step_hook.h"

#include <ATen/ATen.h>

namespace brigade::optim {
namespace {

void clip(at::Tensor gradient, double value) {
  if (gradient.is_sparse()) gradient = gradient._values();
  gradient.clamp_(-value, value);
}

}  // namespace

at::Tensor gradient_in(const at::Tensor& flat, const at::Tensor& parameter,
                       int64_t offset) {
  if (flat.is_sparse()) return flat;
  if (!parameter.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(),
                         flat.storage_offset() + offset);
}

void write_gradient(at::Tensor& parameter, const at::Tensor& reduced) {
  if (reduced.is_sparse()) return;  // the bucket is the gradient
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) {
    gradient.copy_(reduced);
  } else {
    gradient = reduced.clone().to(parameter.scalar_type());
  }
}

void check(const StepOptions& options) {
  if (options.clip_grad_norm) {
    throw ConfigError(
        "clip_grad_norm can't go with an optimizer in the backward pass: the norm of all "
        "gradients is known only when the last one is reduced, and by then the first "
        "parameters have stepped. Use clip_grad_value, or step after backward()");
  }
  if (options.clip_grad_value && !(*options.clip_grad_value > 0)) {
    throw ConfigError("clip_grad_value is " + std::to_string(*options.clip_grad_value) +
                      ", but must be more than 0");
  }
}

void refuse_complex(at::ScalarType dtype) {
  throw ConfigError(
      c10::str("an optimizer in the backward pass can't go with parameters of ", dtype,
               ": step after backward(), or train real ones "
               "(at::view_as_real)"));
}

std::string Attached::describe() const {
  if (!options.clip_grad_value) return stepper.description;
  return stepper.description + " clipped at " + std::to_string(*options.clip_grad_value);
}

const Attached* Plan::find(const at::Tensor& parameter) const {
  if (all) return &attached.front();
  const auto found = of.find(parameter.unsafeGetTensorImpl());
  return found == of.end() ? nullptr : &attached[found->second];
}

std::string StepHook::name() const { return inner().name() + " then optimizer"; }

std::string StepHook::fingerprint() const {
  std::string text = inner().fingerprint();
  for (const Attached& each : plan_->attached) text += " then " + each.describe();
  return text + " for " + (plan_->all ? "all" : std::to_string(plan_->of.size())) +
         " parameters";
}

void StepHook::begin_pass(const HookPass& pass) {
  pass_ = pass;
  HookWrapper::begin_pass(pass);
}

void StepHook::check_dtype(at::ScalarType dtype) const {
  if (c10::isComplexType(dtype)) refuse_complex(dtype);
  HookWrapper::check_dtype(dtype);
}

std::vector<BucketItem> items_of(const Bucket& bucket, const HookPass& pass) {
  const bool sparse = bucket.buffer().is_sparse();
  std::vector<at::Tensor> gradients;
  if (!sparse) gradients = bucket.gradients();
  std::vector<BucketItem> items;
  for (const at::Tensor& parameter : bucket.parameters()) {
    const size_t index = items.size();
    items.push_back({.parameter = parameter,
                     .offset = sparse ? 0
                                      : gradients[index].storage_offset() -
                                            bucket.buffer().storage_offset(),
                     .used = !pass.may_be_unused || parameter.grad().defined()});
  }
  return items;
}

Task<void> agree_on_used(std::vector<BucketItem>& items, at::Device device, Comm& comm) {
  at::Tensor used = at::empty({static_cast<int64_t>(items.size())}, at::kFloat);
  for (size_t i = 0; i < items.size(); ++i) used.data_ptr<float>()[i] = items[i].used;
  at::Tensor shared = used.to(device);
  co_await comm.all_reduce(shared);
  used.copy_(shared);
  for (size_t i = 0; i < items.size(); ++i) items[i].used = used.data_ptr<float>()[i] > 0;
}

Task<StepHook::Reduced> StepHook::reduce_only(Bucket bucket, Comm& comm, bool undivided) {
  const at::Tensor buffer = bucket.buffer();
  Reduced reduced;
  reduced.items = items_of(bucket, pass_);
  for (BucketItem& item : reduced.items) {
    if (pass_.complete) item.attached = plan_->find(item.parameter);
  }
  if (pass_.may_be_unused) co_await agree_on_used(reduced.items, buffer.device(), comm);
  if (owns_gradients_ && !buffer.is_sparse()) {
    // They are in the bucket; their memory is free for gradients that are still to come.
    for (BucketItem& item : reduced.items) {
      if (item.attached) item.parameter.mutable_grad() = at::Tensor();
    }
  }
  if (undivided) {
    const auto found = co_await reduce_inner_undivided(bucket, comm);
    reduced.result = found.result;
    reduced.scale = found.scale;
  } else {
    reduced.result = co_await reduce_inner(bucket, comm);
  }
  if (buffer.is_sparse()) reduced.result = reduced.result.coalesce();
  co_return reduced;
}

Task<at::Tensor> StepHook::reduce(Bucket bucket, Comm& comm) {
  Reduced reduced = co_await reduce_only(std::move(bucket), comm, /*undivided=*/true);
  finish(reduced);
  co_return reduced.result;
}

void StepHook::finish(Reduced& reduced) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(stepping_);
  for (BucketItem& item : reduced.items) {
    at::Tensor gradient = gradient_in(reduced.result, item.parameter, item.offset);
    // One parameter at a time: the step finds it in the cache.
    if (reduced.scale != 1) gradient.mul_(reduced.scale);
    if (!item.used) continue;
    if (item.attached) {
      const StepOptions& options = item.attached->options;
      if (options.clip_grad_value) clip(gradient, *options.clip_grad_value);
      item.attached->stepper.step(item.parameter, gradient);
    } else if (owns_gradients_) {
      write_gradient(item.parameter, gradient);
    }
  }
}

}  // namespace brigade::optim
