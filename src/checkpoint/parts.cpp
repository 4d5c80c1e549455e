#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/nn/module.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "brigade/checkpoint.h"
#include "brigade/data.h"
#include "checkpoint/buckets.h"
#include "checkpoint/named_tensors.h"

namespace brigade {
namespace {

std::string value_of(const PartState& state, const std::string& key) {
  const auto found = state.values.find(key);
  if (found == state.values.end())
    throw CheckpointError("its value '" + key + "' is not there");
  return found->second;
}

uint64_t count_of(const PartState& state, const std::string& key) {
  const std::string text = value_of(state, key);
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end)
    throw CheckpointError("its value '" + key + "' is '" + text + "', which is no count");
  return value;
}

// ---- hook -------------------------------------------------------------------------------

constexpr const char* kOnDevice = "on_device/";
constexpr const char* kHookValue = "state/";

PartState save_hook(const DdpCore& core) {
  PartState out;
  if (!core.hook()) {
    out.values["fingerprint"] = "none";
    return out;
  }
  HookState state = core.hook()->state();
  out.values["fingerprint"] = core.hook()->fingerprint();
  for (auto& [key, value] : state.values) out.values[kHookValue + key] = value;
  for (const auto& [key, tensor] : state.tensors)
    if (!tensor.is_cpu()) out.values[kOnDevice + key] = "";
  out.tensors = std::move(state.tensors);
  return out;
}

HookState hook_state(const PartState& part, at::Device device) {
  HookState state;
  const std::string prefix = kHookValue;
  for (const auto& [key, value] : part.values)
    if (key.starts_with(prefix)) state.values[key.substr(prefix.size())] = value;
  for (const auto& [key, tensor] : part.tensors)
    state.tensors[key] = part.values.contains(kOnDevice + key) ? tensor.to(device) : tensor;
  return state;
}

std::function<void()> load_hook(DdpCore& core, const SavedPart& saved) {
  const auto hook = core.hook();
  const std::string mine = hook ? hook->fingerprint() : "none";
  const std::string theirs = value_of(saved.states.at(0), "fingerprint");
  if (mine != theirs)
    throw CheckpointError("saved with the hook " + theirs + ", but the hook here is " +
                          mine + "; set the same, or leave this part out to begin it anew");
  std::vector<HookState> states;
  for (const PartState& state : saved.states)
    states.push_back(hook_state(state, core.parameters().front().device()));
  HookState state = states.size() == 1 ? std::move(states[0]) : combine_states(states);
  return [hook, state = std::move(state)] {
    if (hook) hook->load_state(state);
  };
}

// ---- sampler ----------------------------------------------------------------------------

struct SamplerPlace {
  uint64_t epoch = 0, position = 0;
};

// Returns where a rank that has `here` samples continues.
SamplerPlace sampler_place(size_t here, const SavedPart& saved) {
  const PartState& state = saved.states.at(0);
  const uint64_t epoch = count_of(state, "epoch");
  uint64_t position = count_of(state, "position");
  const uint64_t size = count_of(state, "size");
  const auto ranks = static_cast<uint64_t>(saved.ranks);
  const auto saved_ranks = static_cast<uint64_t>(saved.saved_ranks);
  if (position > size || (ranks == saved_ranks && size != here))
    throw CheckpointError("saved at sample " + std::to_string(position) + " of " +
                          std::to_string(size) + " of a rank, but a rank has " +
                          std::to_string(here) + " here");
  if (ranks != saved_ranks)
    position = std::min<uint64_t>(position * saved_ranks / ranks, here);
  return {epoch, position};
}

// Saves the position of a DistributedSampler or a DataLoader.
template <class Source>
PartState save_place(const Source& source) {
  PartState state;
  state.values["epoch"] = std::to_string(source.epoch());
  state.values["position"] = std::to_string(source.position());
  state.values["size"] = std::to_string(source.size());
  return state;
}

// ---- random -----------------------------------------------------------------------------

// The generators by name: the CPU's, and those of the CUDA devices that this process uses.
std::map<std::string, at::Generator> generators() {
  std::map<std::string, at::Generator> all{{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (!at::hasCUDA()) return all;
  const int count = at::detail::getCUDAHooks().getNumGPUs();
  for (int index = 0; index < count; ++index) {
    const auto device = static_cast<at::DeviceIndex>(index);
    if (!at::detail::getCUDAHooks().hasPrimaryContext(device)) continue;
    all["cuda." + std::to_string(index)] =
        at::globalContext().defaultGenerator(at::Device(at::kCUDA, device));
  }
  return all;
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::function<void()> load_random(const SavedPart& saved) {
  if (saved.ranks != saved.saved_ranks) return [] {};
  std::vector<std::pair<at::Generator, at::Tensor>> changes;
  for (const auto& [name, generator] : generators()) {
    const auto found = saved.states.at(0).tensors.find(name);
    if (found == saved.states[0].tensors.end())
      throw CheckpointError("the generator '" + name + "' is not there");
    check_like("generator", name, state_of(generator), found->second);
    changes.emplace_back(generator, found->second);
  }
  return [changes] {
    for (auto [generator, state] : changes) {
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  };
}

// ---- model ------------------------------------------------------------------------------

std::function<void()> load_model(torch::nn::Module& model, const SavedPart& saved) {
  const auto& tensors = saved.states.at(0).tensors;
  std::vector<std::pair<at::Tensor, at::Tensor>> changes;
  std::set<std::string> mine;
  for (const auto& [name, tensor] : parameters_and_buffers(model)) {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      throw CheckpointError("'" + name + "' of the model is not in the checkpoint");
    check_like("tensor", name, tensor, found->second);
    changes.emplace_back(tensor, found->second);
    mine.insert(name);
  }
  for (const auto& [name, tensor] : tensors)
    if (!mine.contains(name))
      throw CheckpointError("'" + name + "' of the checkpoint is not in the model");
  return [changes] {
    at::NoGradGuard no_grad;
    for (auto [tensor, from] : changes) tensor.copy_(from);
  };
}

}  // namespace

CheckpointPart model_part(torch::nn::Module& model, std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&model] {
    PartState state;
    for (const auto& [name, tensor] : parameters_and_buffers(model))
      state.tensors[name] = tensor;
    return state;
  };
  part.load = [&model](SavedPart saved) { return load_model(model, saved); };
  return part;
}

CheckpointPart hook_part(DdpCore& core, std::string name) {
  CheckpointPart part{.name = std::move(name), .per_rank = true};
  part.save = [&core] { return save_hook(core); };
  part.load = [&core](SavedPart saved) { return load_hook(core, saved); };
  return part;
}

CheckpointPart sampler_part(DistributedSampler& sampler, std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&sampler] { return save_place(sampler); };
  part.load = [&sampler](SavedPart saved) {
    const SamplerPlace place = sampler_place(sampler.size(), saved);
    return [&sampler, place] {
      sampler.set_epoch(place.epoch);
      if (place.position > 0) sampler.next(place.position);
    };
  };
  return part;
}

CheckpointPart data_loader_part(DataLoaderBase& loader, std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&loader] { return save_place(loader); };
  part.load = [&loader](SavedPart saved) {
    const SamplerPlace place = sampler_place(loader.size(), saved);
    return [&loader, place] { loader.seek(place.epoch, place.position); };
  };
  return part;
}

CheckpointPart random_part(std::string name) {
  CheckpointPart part{.name = std::move(name), .per_rank = true};
  part.save = [] {
    PartState state;
    for (const auto& [name, generator] : generators())
      state.tensors[name] = state_of(generator);
    return state;
  };
  part.load = [](SavedPart saved) { return load_random(saved); };
  return part;
}

CheckpointPart user_part(PartState& state, bool per_rank, std::string name) {
  CheckpointPart part{.name = std::move(name), .per_rank = per_rank};
  part.save = [&state] { return state; };
  part.load = [&state](SavedPart saved) {
    return [&state, loaded = std::move(saved.states.at(0))] { state = loaded; };
  };
  return part;
}

namespace checkpoint {

std::string text_of(const std::vector<std::vector<std::string>>& buckets) {
  return nlohmann::json(buckets).dump();
}

std::vector<std::vector<std::string>> buckets_of(const std::string& text) try {
  return nlohmann::json::parse(text).get<std::vector<std::vector<std::string>>>();
} catch (const nlohmann::json::exception& error) {
  throw CheckpointError(std::string("corrupt: the layout of the buckets cannot be read: ") +
                        error.what());
}

}  // namespace checkpoint

CheckpointPart bucket_part(DdpCore& core) {
  CheckpointPart part{.name = checkpoint::kBucketPart};
  part.save = [&core] {
    // The Reducer would rebuild its buckets in the forward pass after the first iteration.
    // A resumed run must begin with the same buckets as this run continues with.
    core.rebuild_buckets();
    PartState state;
    state.values["layout"] = checkpoint::text_of(core.logging_data().bucket_parameters);
    return state;
  };
  part.load = [](const SavedPart&) { return [] {}; };
  return part;
}

}  // namespace brigade
