#include "local_sgd/diloco.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/hash.h"
#include "brigade/hooks.h"
#include "brigade/local_sgd.h"
#include "local_sgd/hook_averaging.h"

namespace brigade::optim {

// Half types have global parameters in float32, or small outer steps would be rounded away.
at::ScalarType outer_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

OuterParameter OuterParameter::make(const std::string& name, const at::Tensor& parameter,
                                    double momentum) {
  OuterParameter outer{
      name, parameter, parameter.detach().to(outer_dtype(parameter), false, true), {}};
  if (momentum > 0) outer.velocity = at::zeros_like(outer.global);
  return outer;
}

void OuterParameter::step(const at::Tensor& d, double lr, double momentum) {
  global.sub_(d, lr);
  if (!velocity.defined()) return;
  velocity.mul_(momentum).add_(d);
  global.sub_(velocity, lr * momentum);
}

void OuterParameter::reset_local(double mixing) {
  if (mixing == 0) {
    local.copy_(global);
  } else {
    local.copy_(global.mul(1 - mixing).add_(local.to(global.scalar_type()), mixing));
  }
}

namespace {

void require(bool holds, const char* field, double value, const std::string& rule) {
  if (holds) return;
  throw ConfigError(std::string("DiLoCo: ") + field + " is " + detail::text_of(value) +
                    ", but must be " + rule);
}

void check(const DiLoCoOptions& o, size_t parameters) {
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  require(o.period >= 1, "period", count(o.period), "1 or more; usually 100 to 500");
  require(o.outer_lr > 0, "outer_lr", o.outer_lr, "more than 0; 0.7 is usual");
  require(o.outer_momentum >= 0 && o.outer_momentum < 1, "outer_momentum", o.outer_momentum,
          "0 to less than 1; 0.9 is usual");
  const auto most = std::min<int64_t>(o.period, static_cast<int64_t>(parameters));
  require(o.fragments >= 1 && o.fragments <= most, "fragments", count(o.fragments),
          "1 to " + std::to_string(most) + ": the period is " + std::to_string(o.period) +
              ", and there are " + std::to_string(parameters) + " parameters");
  require(o.delay >= 0 && o.delay < o.period, "delay", count(o.delay),
          "0 to less than the period, " + std::to_string(o.period) +
              ", so that one exchange is used before the next");
  require(o.mixing >= 0 && o.mixing < 1, "mixing", o.mixing,
          "0 to less than 1: with 1 the ranks would never meet");
  require(o.bucket_cap_mb > 0, "bucket_cap_mb", o.bucket_cap_mb, "more than 0");
}

void check(const NamedParameters& parameters) {
  if (parameters.empty())
    throw ConfigError("DiLoCo: there are no parameters to train; expected at least one");
  for (const auto& [name, parameter] : parameters) {
    if (parameter.defined() && at::isFloatingType(parameter.scalar_type()) &&
        parameter.layout() == at::kStrided) {
      continue;
    }
    throw ConfigError("DiLoCo: parameter '" + name +
                      "' must be a dense tensor of floating point; leave it out");
  }
}

std::string fingerprint_of(const DiLoCoOptions& o, const NamedParameters& parameters) {
  std::string named;
  for (const auto& [name, tensor] : parameters)
    named += c10::str(name, tensor.sizes(), tensor.dtype(), "\n");
  return c10::str("period=", o.period, ",outer_lr=", o.outer_lr,
                  ",outer_momentum=", o.outer_momentum, ",fragments=", o.fragments,
                  ",delay=", o.delay, ",mixing=", o.mixing, ",init_sync=", o.init_sync,
                  ",bucket_cap_mb=", o.bucket_cap_mb, ",hook=", o.hook->fingerprint(),
                  ",parameters=", parameters.size(), "#", base::hash64(named));
}

// Cuts the parameters, in order, into nearly equal fragments; none is empty.
std::vector<std::vector<size_t>> fragments_of(const NamedParameters& parameters,
                                              int64_t count) {
  int64_t total = 0, so_far = 0;
  for (const auto& [name, tensor] : parameters) total += tensor.numel();
  std::vector<std::vector<size_t>> fragments(1);
  for (size_t index = 0; index < parameters.size(); ++index) {
    const int64_t size = parameters[index].second.numel();
    const auto left = static_cast<int64_t>(parameters.size() - index);
    const auto made = static_cast<int64_t>(fragments.size());
    const bool full = (2 * so_far + size) * count >= 2 * total * made;
    if (made < count && !fragments.back().empty() && (full || left == count - made))
      fragments.emplace_back();
    fragments.back().push_back(index);
    so_far += size;
  }
  return fragments;
}

// Gives every rank the parameters of rank 0.
void make_equal(const NamedParameters& parameters, const ProcessGroup& group) {
  at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    at::Tensor values = parameter.detach().contiguous();
    group.broadcast(values, 0);
    at::Tensor(parameter).copy_(values);
  }
}

}  // namespace

DiLoCo::DiLoCo(Inner inner, const NamedParameters& parameters, ProcessGroup group,
               DiLoCoOptions options) {
  if (!group)
    throw ConfigError("DiLoCo: the group is empty, but must be the ranks to meet");
  check(parameters);
  check(options, parameters.size());
  if (!options.hook) options.hook = make_hook("allreduce");
  for (const auto& [name, parameter] : parameters)
    options.hook->check_dtype(outer_dtype(parameter));
  group.check_same("DiLoCo options", fingerprint_of(options, parameters),
                   "give every rank the same options");
  if (options.init_sync) make_equal(parameters, group);
  state_ = std::make_unique<State>(options, std::move(inner.step), group);
  state_->fragments = fragments_of(parameters, options.fragments);
  at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    state_->outer.push_back(OuterParameter::make(name, parameter, options.outer_momentum));
  }
}

DiLoCo::~DiLoCo() = default;

NamedParameters DiLoCo::trained_parameters(torch::nn::Module& model) {
  NamedParameters parameters;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.emplace_back(item.key(), item.value());
    }
  }
  return parameters;
}

std::vector<at::Tensor> DiLoCo::tensors_of(const NamedParameters& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  return tensors;
}

void DiLoCo::step() {
  State& s = *state_;
  s.inner();
  ++s.steps;
  for (size_t fragment = 0; fragment < s.fragments.size(); ++fragment) {
    if (s.starts(fragment)) s.start(fragment, s.steps + s.options.delay);
  }
  s.use_due(s.steps, s.options.mixing);
}

void DiLoCo::finish() {
  State& s = *state_;
  s.use_due(s.steps + s.options.period, s.options.mixing);
  for (size_t fragment = 0; fragment < s.fragments.size(); ++fragment)
    s.start(fragment, s.steps);
  s.use_due(s.steps, /*mixing=*/0);
}

int64_t DiLoCo::steps() const { return state_->steps; }
int64_t DiLoCo::rejected() const { return state_->rejected; }
HookStats DiLoCo::stats() const { return state_->averaging.stats(); }

bool DiLoCo::State::starts(size_t fragment) const {
  const auto offset = static_cast<int64_t>(fragment) * options.period / options.fragments;
  return steps % options.period == offset;
}

void DiLoCo::State::start(size_t fragment, int64_t due) {
  at::NoGradGuard no_grad;
  std::vector<AveragedTensor> items;
  for (size_t index : fragments[fragment]) {
    const OuterParameter& o = outer[index];
    // The rank started from this: in a half type it is not quite the global parameter.
    const at::Tensor from = o.global.to(o.local.scalar_type());
    const at::ScalarType dtype = o.global.scalar_type();
    items.push_back({o.name, o.local, from.to(dtype) - o.local.to(dtype)});
  }
  const auto bytes = static_cast<int64_t>(options.bucket_cap_mb * 1024 * 1024);
  pending.push_back({fragment, due, averaging.start(items, bytes)});
}

void DiLoCo::State::use_due(int64_t now, double mixing) {
  while (!pending.empty() && pending.front().due <= now) {
    PendingMeans next = std::move(pending.front());
    pending.pop_front();
    use(next, mixing);
  }
}

void DiLoCo::State::use(PendingMeans& next, double mixing) {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& means = next.means.wait();
  const bool finite = std::all_of(means.begin(), means.end(), [](const at::Tensor& mean) {
    return mean.isfinite().all().item<bool>();
  });
  if (!finite) {
    ++rejected;
    TORCH_WARN("DiLoCo: step ", steps, ": the mean difference of fragment ", next.fragment,
               " is not finite: a rank's parameters are not. The global parameters stay as "
               "they are, and all ranks start again from them");
  }
  const std::vector<size_t>& indices = fragments[next.fragment];
  for (size_t i = 0; i < indices.size(); ++i) {
    OuterParameter& o = outer[indices[i]];
    if (finite) o.step(means[i], options.outer_lr, options.outer_momentum);
    o.reset_local(finite ? mixing : 0);
  }
}

}  // namespace brigade::optim
