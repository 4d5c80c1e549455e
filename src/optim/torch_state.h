// torch's optimizers keep a state for each parameter, in types of their own. Each type's
// fields are listed once, in torch_state.cpp; one visitor writes them, another reads them.
#pragma once
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "brigade/optim.h"

namespace brigade::optim {

class Fields;

// One of torch's optimizers.
struct TorchKind {
  const char* name;
  bool (*is)(const torch::optim::Optimizer&);
  void (*options)(torch::optim::OptimizerOptions&, Fields&);
  void (*state)(torch::optim::OptimizerParamState&, Fields&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*fresh)();
};
inline constexpr const char* kTorchKinds = "SGD, Adam, AdamW, RMSprop and Adagrad";
// Null: it is not one of those.
const TorchKind* torch_kind(const torch::optim::Optimizer& optimizer);

// Each field is stored under `prefix` and its name. Reading throws ConfigError if a field
// is missing, is no number, or has another shape or dtype than the parameter.
void write_options(const TorchKind& kind, torch::optim::OptimizerOptions& options,
                   const std::string& prefix, OptimizerState& out);
void read_options(const TorchKind& kind, const OptimizerState& in,
                  const std::string& prefix, torch::optim::OptimizerOptions& options);
void write_state(const TorchKind& kind, torch::optim::OptimizerParamState& state,
                 const std::string& prefix, OptimizerState& out);
// Null: there is none.
std::unique_ptr<torch::optim::OptimizerParamState> read_state(const TorchKind& kind,
                                                              const OptimizerState& in,
                                                              const std::string& prefix,
                                                              const at::Tensor& parameter);

}  // namespace brigade::optim
