// A hook's state in a file: docs/hooks.md, "Checkpoints".
#pragma once
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

inline void save_hook_state(const brigade::HookState& state, const std::string& path) {
  c10::Dict<std::string, at::Tensor> tensors;
  c10::Dict<std::string, std::string> values;
  for (const auto& [key, tensor] : state.tensors) tensors.insert(key, tensor);
  for (const auto& [key, value] : state.values) values.insert(key, value);
  const std::vector<char> bytes =
      torch::pickle_save(c10::ivalue::Tuple::create(tensors, values));
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

inline brigade::HookState load_hook_state(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::IValue both = torch::pickle_load(bytes);
  const auto& parts = both.toTupleRef().elements();
  brigade::HookState state;
  for (const auto& entry : parts[0].toGenericDict())
    state.tensors[entry.key().toStringRef()] = entry.value().toTensor();
  for (const auto& entry : parts[1].toGenericDict())
    state.values[entry.key().toStringRef()] = entry.value().toStringRef();
  return state;
}
