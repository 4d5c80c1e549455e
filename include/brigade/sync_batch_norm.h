// SPDX-License-Identifier: BSD-3-Clause
// Batch normalization over the batches of all ranks, as if they were one: for small batches
// a rank, where each rank's own mean and variance would be too rough.
//
//   torch::nn::Sequential net(torch::nn::Conv2d(…), torch::nn::BatchNorm2d(64), …);
//   brigade::convert_sync_batchnorm(*net, group);
//   brigade::DistributedDataParallel ddp(net, group);
#pragma once
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "brigade/export.h"
#include "brigade/process_group.h"

namespace brigade {

// Takes what BatchNorm1d, 2d and 3d take, (batch, features, …), and has their options,
// names of parameters and buffers, and results: with training on, those of one process that
// has the joined batch, forward and backward; with it off, by the running statistics. The
// gradients of weight and bias are of this rank's batch; DistributedDataParallel averages
// them. Ranks may have batches of different sizes, one of them even none. Each forward and
// each backward pass is collective, and adds one all-reduce of 2 × features + 1 numbers.
class BRIGADE_API SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // Collective: makes connections of its own, so that its messages and those of a model's
  // buckets need no common order.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const ProcessGroup& group);
  // Over a group that only such layers use.
  struct OwnGroup {
    ProcessGroup group;
  };
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, OwnGroup group);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // undefined unless affine
  at::Tensor running_mean, running_var, num_batches_tracked;  // undefined unless tracked

 private:
  at::Tensor normalize_by_batch(const at::Tensor& input);

  ProcessGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

// Collective. Puts a SyncBatchNorm, with the same parameters and buffers, in the place of
// each BatchNorm1d, 2d and 3d inside of `model`, at any depth. A layer can be replaced
// where a Sequential or a ModuleList holds it. Throws ConfigError, before anything is
// changed, if a module of another class holds one: C++ fixes the type of such a member;
// make it a SyncBatchNorm there. Returns the number of layers replaced. To be called before
// the model is wrapped and before an optimizer is made.
BRIGADE_API int convert_sync_batchnorm(torch::nn::Module& model, const ProcessGroup& group);

}  // namespace brigade
