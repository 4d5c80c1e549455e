// The small networks of brigade train.
#pragma once
#include <torch/nn/module.h>

#include <memory>

#include "brigade/process_group.h"
#include "train/model_options.h"

namespace brigade::tool {

// Takes examples of shape {batch, values} or characters of shape {batch, time}. Returns
// each class's likelihood before any softmax, {batch, classes} or {batch * time, classes}.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};
// REQUIRES: `options` are complete. Weights come from torch's default generator. With
// sync_batch_norm it is collective over `group`, which must then be given.
std::shared_ptr<Model> make_model(const ModelOptions& options, const TrainData& data,
                                  const ProcessGroup* group = nullptr);

}  // namespace brigade::tool
