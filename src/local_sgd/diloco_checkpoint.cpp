// Saves and loads the state of a DiLoCo.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <charconv>

#include "brigade/local_sgd.h"
#include "local_sgd/diloco.h"

namespace brigade::optim {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kFragments = "fragments";
constexpr const char* kDue = "due.";  // + the number of a fragment
constexpr const char* kGlobal = "global.";
constexpr const char* kVelocity = "velocity.";
constexpr const char* kPending = "pending.";
constexpr const char* kLocal = "local.";
constexpr const char* kHook = "diloco.hook";
constexpr const char* kOnDevice = "diloco.on_device.";

using Tensors = std::map<std::string, at::Tensor>;
using Values = std::map<std::string, std::string>;

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("DiLoCo: the state " + what);
}

int64_t count_in(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  const std::string text = found == values.end() ? "nothing" : found->second;
  int64_t value = -1;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value).ptr != end || value < 0)
    refuse("has '" + text + "' as '" + key + "', but it must be a count");
  return value;
}

const at::Tensor& tensor_in(const Tensors& tensors, const std::string& key,
                            const at::Tensor& like) {
  const auto found = tensors.find(key);
  if (found == tensors.end()) refuse("lacks '" + key + "'");
  if (found->second.sizes() != like.sizes()) {
    refuse(c10::str("has '", key, "' in shape ", found->second.sizes(), ", but here it is ",
                    like.sizes()));
  }
  return found->second;
}

at::Tensor mean_of(const std::vector<HookState>& states, const std::string& key,
                   const at::Tensor& like) {
  if (states.size() == 1) return tensor_in(states[0].tensors, key, like);
  at::Tensor sum = at::zeros(like.sizes(), at::kDouble);
  for (const HookState& state : states)
    sum += tensor_in(state.tensors, key, like).to(at::kCPU, at::kDouble);
  return sum / static_cast<int64_t>(states.size());
}

// Returns the hook's part of a rank's state.
HookState hook_part_of(const HookState& state, at::Device device) {
  HookState hook;
  for (const auto& [key, tensor] : state.tensors) {
    if (key.starts_with(kLocal)) continue;
    const bool on_device = state.values.contains(kOnDevice + key);
    hook.tensors[key] = on_device ? tensor.to(device) : tensor;
  }
  for (const auto& [key, value] : state.values)
    if (!key.starts_with("diloco.")) hook.values[key] = value;
  return hook;
}

}  // namespace

OptimizerState DiLoCo::state() {
  State& s = *state_;
  OptimizerState state;
  state.values[kSteps] = std::to_string(s.steps);
  state.values[kFragments] = std::to_string(s.options.fragments);
  for (const OuterParameter& o : s.outer) {
    state.tensors[kGlobal + o.name] = o.global;
    if (o.velocity.defined()) state.tensors[kVelocity + o.name] = o.velocity;
  }
  for (PendingMeans& pending : s.pending) {
    state.values[kDue + std::to_string(pending.fragment)] = std::to_string(pending.due);
    const std::vector<at::Tensor>& means = pending.means.wait();
    for (size_t i = 0; i < means.size(); ++i)
      state.tensors[kPending + s.outer[s.fragments[pending.fragment][i]].name] = means[i];
  }
  return state;
}

HookState DiLoCo::rank_state() {
  State& s = *state_;
  for (PendingMeans& pending : s.pending) pending.means.wait();
  HookState state = s.averaging.hook()->state();
  for (const auto& [key, tensor] : state.tensors)
    if (!tensor.is_cpu()) state.values[kOnDevice + key] = "";
  state.values[kHook] = s.averaging.hook()->fingerprint();
  for (const OuterParameter& o : s.outer) state.tensors[kLocal + o.name] = o.local.detach();
  return state;
}

std::function<void()> DiLoCo::read_state(OptimizerState state) {
  State& s = *state_;
  const int64_t steps = count_in(state.values, kSteps);
  for (const OuterParameter& o : s.outer) {
    tensor_in(state.tensors, kGlobal + o.name, o.global);
    const std::string velocity = kVelocity + o.name;
    if (state.tensors.contains(velocity)) tensor_in(state.tensors, velocity, o.global);
  }
  std::vector<PendingMeans> pending;
  for (size_t fragment = 0; fragment < s.fragments.size(); ++fragment) {
    const std::string key = kDue + std::to_string(fragment);
    if (!state.values.contains(key)) continue;
    if (count_in(state.values, kFragments) != s.options.fragments)
      refuse("was saved in the middle of an exchange with another number of fragments");
    std::vector<at::Tensor> means;
    for (size_t index : s.fragments[fragment]) {
      const OuterParameter& o = s.outer[index];
      means.push_back(tensor_in(state.tensors, kPending + o.name, o.global)
                          .to(o.global.options())
                          .clone());
    }
    pending.push_back({fragment, count_in(state.values, key), Means(std::move(means))});
  }
  std::stable_sort(
      pending.begin(), pending.end(),
      [](const PendingMeans& a, const PendingMeans& b) { return a.due < b.due; });
  return [&s, steps, state = std::move(state), pending = std::move(pending)] {
    at::NoGradGuard no_grad;
    for (PendingMeans& lost : s.pending) lost.means.wait();
    s.steps = steps;
    s.pending.assign(pending.begin(), pending.end());
    for (OuterParameter& o : s.outer) {
      o.global.copy_(state.tensors.at(kGlobal + o.name));
      if (!o.velocity.defined()) continue;
      const auto found = state.tensors.find(kVelocity + o.name);
      if (found == state.tensors.end()) {
        o.velocity.zero_();
      } else {
        o.velocity.copy_(found->second);
      }
    }
  };
}

std::function<void()> DiLoCo::read_rank_state(std::vector<HookState> states) {
  State& s = *state_;
  if (states.empty()) refuse("has nothing of any rank");
  const auto hook = s.averaging.hook();
  std::vector<HookState> of_hook;
  for (const HookState& state : states) {
    const auto found = state.values.find(kHook);
    const std::string there = found == state.values.end() ? "none" : found->second;
    if (there != hook->fingerprint())
      refuse("was saved with the hook " + there + ", but here it is " +
             hook->fingerprint());
    of_hook.push_back(hook_part_of(state, s.outer.front().local.device()));
  }
  std::vector<at::Tensor> locals;
  for (const OuterParameter& o : s.outer)
    locals.push_back(mean_of(states, kLocal + o.name, o.local));
  HookState combined = of_hook.size() == 1 ? of_hook[0] : combine_states(of_hook);
  return [&s, hook, locals = std::move(locals), combined = std::move(combined)] {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < locals.size(); ++i) s.outer[i].local.copy_(locals[i]);
    hook->load_state(combined);
  };
}

}  // namespace brigade::optim
