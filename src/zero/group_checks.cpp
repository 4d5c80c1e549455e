#include "zero/group_checks.h"

#include <ATen/ATen.h>

#include <sstream>

namespace brigade::optim {

void agree_on_groups(const ProcessGroup& group, const std::string& description) {
  group.agree_on("ZeRO optimizers", description,
                 "give all ranks the same parameters, in the same order, and the same "
                 "optimizers");
}

std::string describe(const NamedParameters& parameters, const std::string& optimizer) {
  std::ostringstream text;
  text << optimizer << "\n";
  for (const auto& [name, tensor] : parameters)
    text << name << " " << tensor.scalar_type() << " " << tensor.sizes() << "\n";
  return text.str();
}

void check_groups(const std::vector<ZeroGroup>& groups, const ProcessGroup& group,
                  std::set<std::string> names, std::set<const c10::TensorImpl*> tensors) {
  if (!group) {
    throw ConfigError(
        "ZeRO got an empty process group; give it what init_process_group() "
        "returned, and only on ranks that are in the group");
  }
  for (const ZeroGroup& each : groups) {
    if (each.parameters.empty()) throw ConfigError("ZeRO: a group has no parameters");
    for (const auto& [name, tensor] : each.parameters) {
      if (!tensor.defined())
        throw ConfigError("ZeRO: parameter '" + name + "' is not initialized");
      if (!tensor.is_floating_point() && !tensor.is_complex())
        throw ConfigError(c10::str("ZeRO: parameter '", name, "' is of ",
                                   tensor.scalar_type(), ", which no optimizer steps"));
      if (name.empty() || !names.insert(name).second)
        throw ConfigError("ZeRO: two parameters have the name '" + name +
                          "', but each needs its own");
      if (!tensors.insert(tensor.unsafeGetTensorImpl()).second)
        throw ConfigError("ZeRO: parameter '" + name + "' is there twice");
    }
  }
}

void check_root(int to, const ProcessGroup& group) {
  if (to >= 0 && to < group.size()) return;
  throw ConfigError("ZeRO: consolidate to rank " + std::to_string(to) + ", but there are " +
                    std::to_string(group.size()) + " ranks, from 0 on");
}

}  // namespace brigade::optim
