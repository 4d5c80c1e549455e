#include "elastic/replica.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "brigade/compose_hooks.h"
#include "brigade/error.h"
#include "checkpoint/buckets.h"

namespace brigade::elastic {
namespace {

constexpr const char* kModel = "model";
constexpr const char* kOptimizer = "optimizer";  // optimizer_part's name for it
constexpr const char* kHook = "hook";

bool is_own(const std::string& key) {
  return key.starts_with(kErrorPrefix) || key.starts_with(kOwnPrefix);
}

template <class Map>
Map only(const Map& all, bool own) {
  Map found;
  for (const auto& [key, value] : all)
    if (is_own(key) == own) found.emplace(key, value);
  return found;
}

}  // namespace

Replica::Replica(DdpCore& core, torch::nn::Module& model, bool takes_back)
    : core_(core), model_(model), takes_back_(takes_back) {
  add(model_part(model, kModel));
  for (const auto& buffer : model.named_buffers())
    if (buffer.value().defined())
      buffers_.emplace_back(buffer.value(), buffer.value().detach().clone());
}

void Replica::add(CheckpointPart part) {
  const bool taken = std::ranges::any_of(
      parts_, [&](const CheckpointPart& other) { return other.name == part.name; });
  if (taken || part.name == kHook || part.name.empty())
    throw ConfigError("elastic: something is kept under the name '" + part.name +
                      "' already; give it another");
  if (part.per_rank)
    throw ConfigError("elastic: '" + part.name +
                      "' is each rank's own; what is handed over must be equal on all");
  parts_.push_back(std::move(part));
}

HookState Replica::hook_state() const {
  return core_.hook() ? core_.hook()->state() : HookState{};
}

void Replica::commit() {
  ++step_;
  if (!takes_back_) return;
  commit_hook_state();
  at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) copy.copy_(buffer);
}

void Replica::commit_hook_state() {
  const std::shared_ptr<Hook> hook = core_.hook();
  if (!hook) return;
  const bool same = committed_.lock() == hook;
  // A hook that could not commit once is not asked again: its whole state is kept instead.
  if (!same || reverts_) reverts_ = commit_hook(*hook);
  hook_ = reverts_ ? HookState{} : hook->state();
  committed_ = hook;
}

void Replica::revert() {
  if (step_ < 0) return;
  if (const std::shared_ptr<Hook> hook = core_.hook()) {
    if (committed_.lock() != hook) {
      hook->reset();  // the hook was set after the last step
    } else {
      reverts_ ? revert_hook(*hook) : hook->load_state(hook_);
    }
  }
  at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) buffer.copy_(copy);
}

std::string Replica::describe() const {
  std::string text = "hook " + (core_.hook() ? core_.hook()->fingerprint() : "none");
  for (const CheckpointPart& part : parts_) text += "\nkeeps " + part.name;
  return text;
}

States Replica::collect() const {
  States states;
  for (const CheckpointPart& part : parts_) states[part.name] = part.save();
  const HookState hook = hook_state();
  states[kHook] = {only(hook.tensors, false), only(hook.values, false)};
  return states;
}

int64_t Replica::adopt(const ProcessGroup& group, int source, int64_t step,
                       std::chrono::milliseconds& transfer) {
  using std::chrono::steady_clock;
  int64_t bytes = 0;
  const bool gives = group.rank() == source;
  const States mine = gives ? collect() : States{};
  const auto begin = steady_clock::now();
  States states = hand_over(group, source, mine, bytes);
  transfer =
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin);
  if (!gives) load(std::move(states));
  step_ = step - 1;
  commit();
  return bytes;
}

void Replica::load(States states) {
  std::vector<std::function<void()>> changes;
  for (const CheckpointPart& part : parts_) {
    if ((own_.model && part.name == kModel) || (own_.optimizer && part.name == kOptimizer))
      continue;
    SavedPart saved;
    saved.states.push_back(std::move(states.at(part.name)));
    changes.push_back(part.load(std::move(saved)));
  }
  HookState hook = std::move(states.at(kHook));
  // This rank's own state stays, unless it has never taken part.
  if (step_ >= 0) {
    const HookState mine = hook_state();
    hook.tensors.merge(only(mine.tensors, true));
    hook.values.merge(only(mine.values, true));
  }
  for (const auto& change : changes) change();
  if (core_.hook()) core_.hook()->load_state(hook);
}

void Replica::note_buckets() {
  if (auto layout = core_.bucket_layout(); !layout.empty()) buckets_ = std::move(layout);
}

void Replica::take_up_buckets(const ProcessGroup& group, int source) {
  const bool mine = group.rank() == source;
  const auto texts =
      group.gather_texts("elastic buckets", mine ? checkpoint::text_of(buckets_) : "");
  const auto layout = checkpoint::buckets_of(texts[static_cast<size_t>(source)]);
  if (layout != core_.bucket_layout()) core_.begin_with_buckets(layout);
}

std::vector<CheckpointPart> Replica::checkpoint_parts() {
  std::vector<CheckpointPart> parts = parts_;
  parts.push_back(hook_part(core_, kHook));
  CheckpointPart buckets = bucket_part(core_);
  buckets.load = [this](SavedPart saved) {
    const auto found = saved.states.at(0).values.find("layout");
    if (found == saved.states.at(0).values.end())
      throw CheckpointError("it does not say which parameters share a bucket");
    return [this, layout = checkpoint::buckets_of(found->second)] {
      core_.begin_with_buckets(layout);
      note_buckets();
    };
  };
  parts.push_back(std::move(buckets));
  CheckpointPart steps{.name = "steps"};
  steps.save = [this] {
    PartState state;
    state.values["steps"] = std::to_string(step_);
    return state;
  };
  steps.load = [this](SavedPart saved) {
    const auto found = saved.states.at(0).values.find("steps");
    if (found == saved.states.at(0).values.end())
      throw CheckpointError("it does not say how many steps were done");
    return [this, step = std::stoll(found->second)] {
      step_ = step - 1;
      commit();
    };
  };
  parts.push_back(std::move(steps));  // the last: it copies what the others have loaded
  return parts;
}

std::string Replica::hash() const {
  States states = collect();
  if (apart_) {
    for (const char* own : {kModel, kOptimizer, kHook}) states.erase(own);
    return hash_of(states);
  }
  // Received state may be on another device than the source's own, where its hash differs.
  for (auto& [name, state] : states) {
    if (name == kModel || name == kOptimizer) continue;
    for (auto& [key, tensor] : state.tensors) tensor = tensor.detach().cpu();
  }
  auto& model = states.at(kModel).tensors;
  for (const auto& buffer : model_.named_buffers()) model.erase(buffer.key());
  return hash_of(states);
}

}  // namespace brigade::elastic
