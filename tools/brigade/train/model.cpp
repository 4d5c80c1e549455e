#include "train/model.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

#include "brigade/distributed_data_parallel.h"

namespace brigade::tool {
namespace {

namespace nn = torch::nn;
using Kind = TrainData::Kind;

class Mlp : public Model {
 public:
  Mlp(std::int64_t inputs, std::int64_t width, std::int64_t layers, std::int64_t classes) {
    for (std::int64_t i = 0; i < layers; ++i) {
      layers_->push_back(nn::Linear(i == 0 ? inputs : width, width));
      layers_->push_back(nn::ReLU());
    }
    layers_->push_back(nn::Linear(layers == 0 ? inputs : width, classes));
    register_module("layers", layers_);
  }
  at::Tensor forward(const at::Tensor& input) override { return layers_->forward(input); }

 private:
  nn::Sequential layers_;
};

// Two convolutions, each followed by a norm if asked for and by a pool where the image is
// large enough, and two dense layers.
class Cnn : public Model {
 public:
  Cnn(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t classes)
      : height_(height), width_(width) {
    const auto conv = [](std::int64_t from, std::int64_t to) {
      return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1));
    };
    first_ = register_module("first", conv(1, channels));
    second_ = register_module("second", conv(channels, 2 * channels));
    pools_ = std::min(height, width) >= 16 ? 2 : std::min(height, width) >= 4 ? 1 : 0;
    const std::int64_t shrink = std::int64_t{1} << pools_;
    wide_ = register_module(
        "wide",
        nn::Linear(2 * channels * (height / shrink) * (width / shrink), 4 * channels));
    output_ = register_module("output", nn::Linear(4 * channels, classes));
  }
  // Collective over `group`. Must be called before the model is wrapped.
  void add_norms(std::int64_t channels, const ProcessGroup& group) {
    norm1_ = register_module("norm1", SyncBatchNorm(channels, group));
    norm2_ = register_module("norm2", SyncBatchNorm(2 * channels, group));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = first_(input.view({-1, 1, height_, width_}));
    x = torch::relu(norm1_ ? norm1_(x) : x);
    if (pools_ > 1) x = torch::max_pool2d(x, 2);
    x = second_(x);
    x = torch::relu(norm2_ ? norm2_(x) : x);
    if (pools_ > 0) x = torch::max_pool2d(x, 2);
    return output_(torch::relu(wide_(x.flatten(1))));
  }

 private:
  std::int64_t height_, width_, pools_ = 0;
  nn::Conv2d first_{nullptr}, second_{nullptr};
  SyncBatchNorm norm1_{nullptr}, norm2_{nullptr};  // null: no norms
  nn::Linear wide_{nullptr}, output_{nullptr};
};

// Attention to earlier characters, then a dense layer; each has a norm before and a sum
// after it.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        heads(register_module("heads", nn::Linear(width, 3 * width))),
        mix(register_module("mix", nn::Linear(width, width))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))) {}

  at::Tensor forward(at::Tensor x, const at::Tensor& future) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    const auto head_width = width / kAttentionHeads;
    const auto parts = heads(norm1(x))
                           .view({batch, time, 3, kAttentionHeads, head_width})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);  // query, key, value: batch, head, time, width
    at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) /
                        std::sqrt(static_cast<double>(head_width));
    scores = scores.masked_fill(future, -INFINITY).softmax(3);
    const at::Tensor seen =
        torch::matmul(scores, parts[2]).transpose(1, 2).reshape({batch, time, width});
    x = x + mix(seen);
    return x + down(torch::gelu(up(norm2(x))));
  }

  nn::LayerNorm norm1;
  nn::Linear heads, mix;
  nn::LayerNorm norm2;
  nn::Linear up, down;
};
TORCH_MODULE(Block);

class Transformer : public Model {
 public:
  Transformer(std::int64_t characters, std::int64_t context, std::int64_t width,
              std::int64_t layers)
      : characters_(register_module("characters", nn::Embedding(characters, width))),
        places_(register_module("places", nn::Embedding(context, width))),
        norm_(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        output_(register_module("output", nn::Linear(width, characters))) {
    for (std::int64_t i = 0; i < layers; ++i) blocks_->push_back(Block(width));
    register_module("blocks", blocks_);
  }
  at::Tensor forward(const at::Tensor& input) override {
    const std::int64_t time = input.size(1);
    const auto here = torch::TensorOptions().device(input.device());
    const at::Tensor future = torch::ones({time, time}, here.dtype(torch::kBool)).triu(1);
    at::Tensor x = characters_(input) + places_(torch::arange(time, here.dtype(at::kLong)));
    for (const auto& block : *blocks_) x = block->as<Block>()->forward(x, future);
    return output_(norm_(x)).flatten(0, 1);
  }

 private:
  nn::Embedding characters_, places_;
  nn::ModuleList blocks_;
  nn::LayerNorm norm_;
  nn::Linear output_;
};

}  // namespace

std::shared_ptr<Model> make_model(const ModelOptions& options, const TrainData& data,
                                  const ProcessGroup* group) {
  const auto classes = static_cast<std::int64_t>(data.classes.size());
  if (options.model == "mlp")
    return std::make_shared<Mlp>(data.values(), options.width, options.layers, classes);
  if (options.model == "cnn") {
    auto model = std::make_shared<Cnn>(data.height, data.width, options.width, classes);
    if (options.sync_batch_norm) model->add_norms(options.width, *group);
    return model;
  }
  return std::make_shared<Transformer>(classes, options.context, options.width,
                                       options.layers);
}

}  // namespace brigade::tool
