// The small networks of brigade train.
#pragma once
#include <torch/nn/module.h>

#include <memory>

#include "brigade/process_group.h"
#include "train/model_options.h"

namespace brigade::tool {

// For examples of shape {batch, values} or characters of shape {batch, time}: how likely
// each class is, {batch, classes} or {batch * time, classes}, before any softmax.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};
// REQUIRES: `options` are complete. Weights come from torch's default generator. Collective
// over `group`, which must be given, if they ask for sync_batch_norm.
std::shared_ptr<Model> make_model(const ModelOptions& options, const TrainData& data,
                                  const ProcessGroup* group = nullptr);

}  // namespace brigade::tool
