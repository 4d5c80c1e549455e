// SPDX-License-Identifier: BSD-3-Clause
// PyTorch's PostLocalSGDOptimizer: steps an optimizer, then averages the parameters. It
// needs the hook of brigade/local_sgd/post_local_sgd.h beside it, with a start that is the
// averager's warm-up; brigade/local_sgd/local_sgd.h has all of them in one.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "brigade/export.h"
#include "brigade/local_sgd/model_averager.h"

namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace brigade::optim {

// A learning-rate scheduler takes optimizer(), which is any of torch::optim's.
class BRIGADE_API PostLocalSGDOptimizer {
 public:
  // Throws ConfigError if one of them is null.
  PostLocalSGDOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                        std::shared_ptr<ModelAverager> averager);

  // Collective, when the averager's step is one to average at. Gives what the optimizer's
  // step gives.
  at::Tensor step(std::function<at::Tensor()> closure = {});
  // Also where gradients are views into buckets.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  ModelAverager& averager() { return *averager_; }

  // What the optimizer saves, and the averager's step. A file without that, as the
  // optimizer alone writes it, loads with a warning, and the step is 0. torch::save and
  // torch::load work too.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ModelAverager> averager_;
};

BRIGADE_API torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const PostLocalSGDOptimizer& optimizer);
BRIGADE_API torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, PostLocalSGDOptimizer& optimizer);

}  // namespace brigade::optim
