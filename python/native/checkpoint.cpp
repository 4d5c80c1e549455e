// Checkpoints and safetensors files. Python decides what a part contains.
#include "brigade/checkpoint.h"

#include <ATen/ATen.h>

#include "bindings.h"
#include "native_hook.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;
// A part: its name, whether each rank has its own, and the state to save.
using Part = std::tuple<std::string, bool, StateParts>;

void save(const std::string& folder, int64_t step, c10d::ProcessGroup& group,
          const std::vector<Part>& given) {
  std::vector<CheckpointPart> parts;
  for (const auto& [name, per_rank, state] : given) {
    parts.push_back({name, per_rank, [&state = state] { return state_of(state); }});
  }
  save_checkpoint(folder, step, adopt_any(group), parts);
}

using Loaded = std::map<std::string, std::vector<StateParts>>;

// Returns the step, and the states by name. If the number of ranks has changed, a part with
// a shard for each rank has all of them.
std::optional<std::pair<int64_t, Loaded>> load(
    const std::string& folder, c10d::ProcessGroup& group,
    const std::vector<std::pair<std::string, bool>>& wanted) {
  Loaded loaded;
  std::vector<CheckpointPart> parts;
  for (const auto& [name, per_rank] : wanted) {
    CheckpointPart& part = parts.emplace_back();
    part.name = name;
    part.per_rank = per_rank;
    part.load = [&into = loaded[name]](SavedPart saved) -> std::function<void()> {
      for (PartState& state : saved.states) into.push_back(parts_of(std::move(state)));
      return [] {};
    };
  }
  const auto step = load_checkpoint(folder, adopt_any(group), parts);
  if (!step) return std::nullopt;
  return std::make_pair(*step, std::move(loaded));
}

}  // namespace

void bind_checkpoint(py::module_& m) {
  m.def("save_checkpoint", &save, NoGil());
  m.def("load_checkpoint", &load, NoGil());
  m.def(
      "save_safetensors",
      [](const std::string& path, std::map<std::string, at::Tensor> tensors,
         std::map<std::string, std::string> metadata) {
        save_safetensors(path, {std::move(tensors), std::move(metadata)});
      },
      NoGil());
  m.def(
      "load_safetensors",
      [](const std::string& path, bool required) {
        SafetensorsFile file =
            load_safetensors(path, required ? Checksums::required : Checksums::if_present);
        return StateParts(std::move(file.tensors), std::move(file.metadata));
      },
      NoGil());
}

}  // namespace brigade::python
