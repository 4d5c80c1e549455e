#include "optim/step_hook.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>

#include "hooks/stream_use.h"
#include "optim/clip_grad_norm.h"

namespace brigade::optim {
namespace {

void clip(at::Tensor gradient, double value) {
  if (gradient.is_sparse()) gradient = gradient._values();
  gradient.clamp_(-value, value);
}

// Returns an event for the work under way on the current stream of the tensor's device.
c10::Event work_on(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

bool is_clipped(const BucketItem& item) {
  return item.used && item.attached && item.attached->options.clip_grad_norm;
}

// Returns the optimizer that clips all of a bucket's gradients, if there is one.
const Attached* clipper_of(const std::vector<BucketItem>& items) {
  const Attached* by = items.front().attached;
  const bool whole = std::ranges::all_of(items, [&](const BucketItem& item) {
    return is_clipped(item) && item.attached == by;
  });
  return whole ? by : nullptr;
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
  const auto more_than_0 = [](const char* name, const std::optional<double>& value) {
    if (!value || *value > 0) return;
    throw ConfigError(std::string(name) + " is " + std::to_string(*value) +
                      ", but must be more than 0");
  };
  more_than_0("clip_grad_norm", options.clip_grad_norm);
  more_than_0("clip_grad_value", options.clip_grad_value);
}

void refuse_complex(at::ScalarType dtype) {
  throw ConfigError(
      c10::str("an optimizer in the backward pass can't go with parameters of ", dtype,
               ": step after backward(), or train real ones "
               "(at::view_as_real)"));
}

std::string Attached::describe() const {
  std::string text = stepper.description;
  if (options.clip_grad_value)
    text += " clipped at " + std::to_string(*options.clip_grad_value);
  if (options.clip_grad_norm)
    text += " clipped at norm " + std::to_string(*options.clip_grad_norm);
  return text;
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
  held_.clear();  // left by a pass that failed
  buckets_ = 0;
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

Task<StepHook::Reduced> StepHook::reduce_only(Bucket bucket, Comm& comm, Result wanted) {
  const at::Tensor buffer = bucket.buffer();
  Reduced reduced;
  reduced.index = bucket.index();
  reduced.items = items_of(bucket, pass_);
  for (BucketItem& item : reduced.items) {
    if (pass_.complete) item.attached = plan_->find(item.parameter);
  }
  if (pass_.may_be_unused) co_await agree_on_used(reduced.items, buffer.device(), comm);
  if (owns_gradients_ && !buffer.is_sparse()) {
    // The gradients are in the bucket; later gradients can use their memory.
    for (BucketItem& item : reduced.items) {
      if (item.attached) item.parameter.mutable_grad() = at::Tensor();
    }
  }
  if (wanted == Result::undivided) {
    const Undivided found = co_await reduce_inner_undivided(bucket, comm);
    reduced.result = found.result;
    reduced.scale = found.scale;
  } else {
    reduced.result = co_await reduce_inner(bucket, comm);
  }
  if (buffer.is_sparse()) reduced.result = reduced.result.coalesce();
  co_return reduced;
}

Task<at::Tensor> StepHook::reduce(Bucket bucket, Comm& comm) {
  const int64_t buckets = bucket.is_last() ? bucket.index() + 1 : 0;
  const bool by_norm = std::ranges::any_of(plan_->attached, [](const Attached& each) {
    return each.options.clip_grad_norm.has_value();
  });
  const Result wanted = by_norm ? Result::plain : Result::undivided;
  Reduced reduced = co_await reduce_only(std::move(bucket), comm, wanted);
  at::Tensor result = reduced.result;
  if (by_norm) {
    hold(std::move(reduced), buckets);
  } else {
    finish(reduced);
  }
  co_return result;
}

void StepHook::hold(Reduced reduced, int64_t buckets) {
  std::unique_lock lock(stepping_);
  if (!reduced.result.is_cpu()) reduced.ready.emplace(work_on(reduced.result));
  held_.push_back(std::move(reduced));
  if (buckets > 0) buckets_ = buckets;
  if (buckets_ == 0 || static_cast<int64_t>(held_.size()) < buckets_) return;
  std::vector<Reduced> all = std::exchange(held_, {});
  lock.unlock();
  // All buckets of this pass are here. Every rank takes them in the same order, so that all
  // find the same norm to the bit.
  std::ranges::sort(all, {}, &Reduced::index);
  all.front().ready ? scale_by_norm_on_device(all) : scale_by_norm(all);
  for (Reduced& each : all) finish(each);
}

// The host does not wait for the norm.
void StepHook::scale_by_norm_on_device(std::vector<Reduced>& all) const {
  at::NoGradGuard no_grad;
  std::map<const Attached*, std::vector<at::Tensor>> clipped;
  for (Reduced& reduced : all) {
    // The buckets were written on other streams.
    const c10::Device device = reduced.result.device();
    reduced.ready->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    use_on_current_stream(reduced.result);
    const at::Tensor flat =
        reduced.result.is_sparse() ? reduced.result._values() : reduced.result;
    if (const Attached* by = clipper_of(reduced.items)) {
      clipped[by].push_back(flat);
      continue;
    }
    for (const BucketItem& item : reduced.items) {
      if (is_clipped(item))
        clipped[item.attached].push_back(
            gradient_in(reduced.result, item.parameter, item.offset));
    }
  }
  for (const auto& [attached, gradients] : clipped) {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& gradient : gradients)
      norms.push_back(at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), false,
                                             at::kDouble));
    const at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
    const at::Tensor factor =
        (*attached->options.clip_grad_norm / (norm + kAgainstZero)).clamp_max_(1);
    for (at::Tensor gradient : gradients) gradient.mul_(factor.to(gradient.scalar_type()));
  }
}

void StepHook::scale_by_norm(std::vector<Reduced>& all) const {
  std::map<const Attached*, double> squares;
  for (const Reduced& reduced : all) {
    for (const BucketItem& item : reduced.items) {
      if (!is_clipped(item)) continue;
      squares[item.attached] +=
          squares_in(gradient_in(reduced.result, item.parameter, item.offset));
    }
  }
  for (Reduced& reduced : all) {
    for (BucketItem& item : reduced.items) {
      if (!is_clipped(item)) continue;
      item.scale =
          clipping_factor(squares[item.attached], *item.attached->options.clip_grad_norm);
    }
  }
}

// On a CPU it handles one parameter at a time, so that the step finds the scaled values in
// the cache. On a device a pass over a bucket takes as long as one over a small parameter.
void StepHook::finish(Reduced& reduced) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(stepping_);
  const bool together = !reduced.result.is_cpu() && !reduced.result.is_sparse();
  if (together && reduced.scale != 1) reduced.result.mul_(reduced.scale);
  std::map<const Attached*, std::vector<ParameterStep>> steps;
  for (BucketItem& item : reduced.items) {
    at::Tensor gradient = gradient_in(reduced.result, item.parameter, item.offset);
    const double scale = item.scale * (together ? 1 : reduced.scale);
    if (scale != 1) gradient.mul_(scale);
    if (!item.used) continue;
    if (item.attached) {
      const Attached& attached = *item.attached;
      if (attached.options.clip_grad_value)
        clip(gradient, *attached.options.clip_grad_value);
      if (together) {
        steps[&attached].push_back({item.parameter, gradient});
      } else {
        attached.stepper.step(item.parameter, gradient);
      }
    } else if (owns_gradients_) {
      write_gradient(item.parameter, gradient);
    }
  }
  for (const auto& [attached, list] : steps) attached->stepper.all(list);
}

}  // namespace brigade::optim
