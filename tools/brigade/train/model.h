// The small networks of brigade train.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "train/data.h"

namespace brigade::tool {

struct ModelOptions {
  std::string model;          // "mlp", "cnn" or "transformer"; empty: what suits the data
  std::int64_t width = 0;     // of its layers; 0: 128, 32 channels, 64
  std::int64_t layers = 2;    // of an mlp or a transformer
  std::int64_t context = 64;  // characters that a transformer sees
};

// Fills in what is left open. Throws ConfigError where the model does not suit the data.
// Needs no torch, so that it can be asked before workers are forked.
ModelOptions complete(ModelOptions options, const TrainData& data);

// For examples of shape {batch, values} or characters of shape {batch, time}: how likely
// each class is, {batch, classes} or {batch * time, classes}, before any softmax.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};
// REQUIRES: `options` are complete. Weights come from torch's default generator.
std::shared_ptr<Model> make_model(const ModelOptions& options, const TrainData& data);

}  // namespace brigade::tool
