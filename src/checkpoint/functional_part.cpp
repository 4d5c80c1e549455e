// What brigade's own optimizers keep is by parameter name already.
#include "brigade/checkpoint.h"
#include "brigade/optim.h"
#include "checkpoint/named.h"

namespace brigade {
namespace {

// A state with more than the model has parameters for is of another model: what it lacks
// here would be lost without a word.
void check_nothing_left(const PartState& saved, const NamedTensors& parameters) {
  std::set<std::string> known;
  for (const auto& [name, parameter] : parameters) known.insert(name);
  for (const auto& [key, tensor] : saved.tensors) {
    const std::string name = key.substr(0, key.rfind('.'));
    if (!known.contains(name))
      throw CheckpointError("its tensor '" + key + "' is of a parameter '" + name +
                            "', which the model does not have");
  }
}

std::function<void()> load(optim::Optimizer& optimizer, torch::nn::Module& model,
                           const PartState& saved) try {
  const NamedTensors parameters = named_parameters(model);
  check_nothing_left(saved, parameters);
  return optimizer.read_state(saved, parameters);
} catch (const ConfigError& error) {
  throw CheckpointError(error.what());
}

}  // namespace

CheckpointPart optimizer_part(optim::Optimizer& optimizer, torch::nn::Module& model,
                              std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&] { return optimizer.state(named_parameters(model)); };
  part.load = [&](SavedPart saved) { return load(optimizer, model, saved.states.at(0)); };
  return part;
}

}  // namespace brigade
