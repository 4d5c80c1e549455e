#include "optim/step_hook.h"

#include <ATen/ATen.h>

namespace brigade::optim {
namespace {

// The part of `flat` that belongs to a parameter, laid out as the Reducer lays it out: like
// the parameter where that is dense.
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

void clip(at::Tensor gradient, double value) {
  if (gradient.is_sparse()) gradient = gradient._values();
  gradient.clamp_(-value, value);
}

Task<at::Tensor> average(const at::Tensor& buffer, Comm& comm) {
  at::Tensor values = buffer.div(comm.size());
  co_await comm.all_reduce(values);
  co_return values.coalesce();
}

}  // namespace

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

std::string Attached::describe() const {
  if (!options.clip_grad_value) return stepper.description;
  return stepper.description + " clipped at " + std::to_string(*options.clip_grad_value);
}

const Attached* Plan::find(const at::Tensor& parameter) const {
  if (all) return &attached.front();
  const auto found = of.find(parameter.unsafeGetTensorImpl());
  return found == of.end() ? nullptr : &attached[found->second];
}

std::string StepHook::name() const { return inner_->name() + " then optimizer"; }

std::string StepHook::fingerprint() const {
  std::string text = inner_->fingerprint();
  for (const Attached& each : plan_->attached) text += " then " + each.describe();
  return text + " for " + (plan_->all ? "all" : std::to_string(plan_->of.size())) +
         " parameters";
}

void StepHook::begin_pass(const HookPass& pass) {
  pass_ = pass;
  inner_->begin_pass(pass);
}

std::vector<StepHook::Item> StepHook::items_of(const Bucket& bucket) const {
  const bool sparse = bucket.buffer().is_sparse();
  std::vector<at::Tensor> gradients;
  if (!sparse) gradients = bucket.gradients();
  std::vector<Item> items;
  for (const at::Tensor& parameter : bucket.parameters()) {
    const size_t index = items.size();
    items.push_back({.parameter = parameter,
                     .offset = sparse ? 0
                                      : gradients[index].storage_offset() -
                                            bucket.buffer().storage_offset(),
                     .used = !pass_.may_be_unused || parameter.grad().defined(),
                     .attached = pass_.complete ? plan_->find(parameter) : nullptr});
  }
  return items;
}

Task<at::Tensor> StepHook::reduce(Bucket bucket, Comm& comm) {
  const at::Tensor buffer = bucket.buffer();
  std::vector<Item> items = items_of(bucket);
  if (pass_.may_be_unused) {
    // A parameter that no rank used has no gradient after an ordinary pass, and an
    // optimizer passes over it: so must this one.
    at::Tensor used = at::empty({static_cast<int64_t>(items.size())}, at::kFloat);
    for (size_t i = 0; i < items.size(); ++i) used.data_ptr<float>()[i] = items[i].used;
    at::Tensor shared = used.to(buffer.device());
    co_await comm.all_reduce(shared);
    used.copy_(shared);
    for (size_t i = 0; i < items.size(); ++i) items[i].used = used.data_ptr<float>()[i] > 0;
  }
  if (owns_gradients_ && !buffer.is_sparse()) {
    // They are in the bucket; their memory is free for gradients that are still to come.
    for (Item& item : items) {
      if (item.attached) item.parameter.mutable_grad() = at::Tensor();
    }
  }
  at::Tensor result;
  if (buffer.is_sparse()) {
    result = co_await average(buffer, comm);
  } else {
    result = co_await inner_->reduce(bucket, comm);
  }
  finish(items, result);
  co_return result;
}

void StepHook::finish(std::vector<Item>& items, const at::Tensor& result) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(stepping_);
  for (Item& item : items) {
    if (!item.used) continue;
    const at::Tensor gradient = gradient_in(result, item.parameter, item.offset);
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
