#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "brigade/ddp_core.h"
#include "brigade/local_sgd.h"

namespace brigade::optim {
namespace {

constexpr const char* kStep = "averager_step";

}  // namespace

PostLocalSGDOptimizer::PostLocalSGDOptimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer,
    std::shared_ptr<ModelAverager> averager)
    : optimizer_(std::move(optimizer)), averager_(std::move(averager)) {
  if (!optimizer_ || !averager_) {
    throw ConfigError(std::string("PostLocalSGDOptimizer: the ") +
                      (optimizer_ ? "averager" : "optimizer") +
                      " is null, but both are needed");
  }
}

at::Tensor PostLocalSGDOptimizer::step(std::function<at::Tensor()> closure) {
  at::Tensor loss = optimizer_->step(std::move(closure));
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_->param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  averager_->average_parameters(parameters);
  return loss;
}

void PostLocalSGDOptimizer::zero_grad(bool set_to_none) {
  brigade::zero_grad(*optimizer_, set_to_none);
}

void PostLocalSGDOptimizer::save(torch::serialize::OutputArchive& archive) const {
  optimizer_->save(archive);
  archive.write(kStep, c10::IValue(averager_->step()));
}

void PostLocalSGDOptimizer::load(torch::serialize::InputArchive& archive) {
  optimizer_->load(archive);
  c10::IValue step;
  if (archive.try_read(kStep, step)) {
    averager_->set_step(step.toInt());
    return;
  }
  TORCH_WARN(
      "PostLocalSGDOptimizer: what was loaded has no step of an averager: it counts "
      "from 0 again, and the warm-up begins anew");
  averager_->set_step(0);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const PostLocalSGDOptimizer& optimizer) {
  optimizer.save(archive);
  return archive;
}
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           PostLocalSGDOptimizer& optimizer) {
  optimizer.load(archive);
  return archive;
}

}  // namespace brigade::optim
