// Chooses the network of brigade train. No torch.
#pragma once
#include <cstdint>
#include <string>

#include "train/data/data.h"

namespace brigade::tool {

constexpr std::int64_t kAttentionHeads = 4;  // of a transformer

struct ModelOptions {
  std::string model;          // "mlp", "cnn" or "transformer"; empty: what suits the data
  std::int64_t width = 0;     // of each layer; 0: 128, 32 channels, 64
  std::int64_t layers = 2;    // of an mlp or a transformer
  std::int64_t context = 64;  // characters that a transformer sees
  bool sync_batch_norm = false;  // of a cnn: after each convolution, over all workers
};

// Fills in the fields that are left open. Throws ConfigError where the model does not suit
// the data. May be called before workers are forked.
ModelOptions complete(ModelOptions options, const TrainData& data);

}  // namespace brigade::tool
