// A training run with everything that a checkpoint must restore: several buckets, buffers,
// dropout, an optimizer with state, a hook with errors, a sampler.
#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "brigade/checkpoint.h"
#include "brigade/data.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "brigade/zero.h"

namespace brigade::testing {

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int64_t width = 24)
      : in(register_module("in", torch::nn::Linear(16, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        hidden(register_module("hidden", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(norm(in(x)));
    return out(torch::dropout(torch::tanh(hidden(x)), 0.1, is_training()));
  }
  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear hidden;
  torch::nn::Linear out;
};
TORCH_MODULE(SmallNet);

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& kind, const std::vector<at::Tensor>& parameters) {
  namespace to = torch::optim;
  if (kind == "sgd")
    return std::make_unique<to::SGD>(parameters, to::SGDOptions(0.05).momentum(0.9));
  if (kind == "adam")
    return std::make_unique<to::Adam>(parameters, to::AdamOptions(0.01).amsgrad(true));
  if (kind == "adamw")
    return std::make_unique<to::AdamW>(parameters, to::AdamWOptions(0.01));
  if (kind == "rmsprop")
    return std::make_unique<to::RMSprop>(
        parameters, to::RMSpropOptions(0.001).momentum(0.5).centered(true));
  return std::make_unique<to::Adagrad>(parameters, to::AdagradOptions(0.05).lr_decay(0.01));
}

class SmallRun {
 public:
  // Resumes from the checkpoint in `folder`, if there is one. The optimizers "zero" (after
  // the hook) and "reduce_scatter" (in place of one) are ZeRO's.
  SmallRun(ProcessGroup group, std::string folder, const std::string& hook,
           const std::string& optimizer = "adam", int64_t width = 24)
      : group_(std::move(group)),
        folder_(std::move(folder)),
        net_(seeded(width)),
        ddp_(net_, group_, options()),
        sampler_(101, group_) {
    if (optimizer == "reduce_scatter") {
      sharded_ = optim::apply_zero_in_backward(ddp_, "adamw:lr=0.01");
    } else if (optimizer == "zero") {
      auto zero = std::make_shared<optim::ZeroRedundancyOptimizer>(ddp_, "adam:lr=0.01");
      sharded_ = zero;
      ddp_->set_hook(
          optim::hook_with_zero_step_interleaved(make_hook(hook), ddp_, std::move(zero)));
    } else {
      optimizer_ = make_optimizer(optimizer, ddp_->parameters());
      ddp_->set_hook(make_hook(hook));
    }
    torch::manual_seed(100 + group_.rank());
    inputs_ = torch::randn({101, 16}, at::detail::createCPUGenerator(5));
    targets_ = (inputs_.sum(1) > 0).to(at::kLong) + 2 * (inputs_.select(1, 0) > 0);
    step_ = load_checkpoint(folder_, group_, parts()).value_or(0);
    random_ = at::detail::getDefaultCPUGenerator().get_state();
  }

  std::vector<CheckpointPart> parts() {
    return {model_part(*net_),
            sharded_ ? zero_part(*sharded_) : optimizer_part(*optimizer_, *net_),
            hook_part(ddp_->core()),
            bucket_part(ddp_->core()),
            sampler_part(sampler_),
            random_part(),
            user_part(user_)};
  }
  void save(std::vector<CheckpointPart> more = {}) {
    auto all = parts();
    all.insert(all.end(), more.begin(), more.end());
    save_checkpoint(folder_, step_, group_, all);
  }
  int64_t load() { return load_checkpoint(folder_, group_, parts()).value_or(-1); }

  void train(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) train_step();
  }
  void train_step() {
    // Several runs of one process draw from one generator; each goes on from its own state.
    restore_generator();
    auto indices = sampler_.next(8);
    if (!indices || indices->size() < 8) {
      sampler_.set_epoch(sampler_.epoch() + 1);
      indices = sampler_.next(8);
    }
    const at::Tensor batch =
        torch::tensor(std::vector<int64_t>(indices->begin(), indices->end()));
    ddp_->zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(
        ddp_->forward(inputs_.index_select(0, batch)), targets_.index_select(0, batch));
    loss.backward();
    if (optimizer_) optimizer_->step();
    user_.tensors["last_loss"] = loss.detach();
    random_ = at::detail::getDefaultCPUGenerator().get_state();
    ++step_;
    if (step_ % 50 == 0) set_lr(lr() * 0.7);
  }

  // Everything that the future of the run depends on, as one flat tensor.
  at::Tensor everything() {
    restore_generator();
    std::vector<at::Tensor> flat{torch::tensor(
        {double(step_), double(sampler_.epoch()), double(sampler_.position()), lr()},
        at::kDouble)};
    for (const CheckpointPart& part : parts())
      for (const auto& [name, tensor] : part.save().tensors)
        flat.push_back(tensor.detach().to(at::kDouble).flatten());
    return torch::cat(flat);
  }
  at::Tensor weights() {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& p : net_->parameters()) flat.push_back(p.detach().flatten());
    return torch::cat(flat).clone();
  }

  int64_t step() const { return step_; }
  double lr() {
    return sharded_ ? sharded_->lr() : optimizer_->param_groups()[0].options().get_lr();
  }
  void set_lr(double lr) {
    if (sharded_) {
      sharded_->set_lr(lr);
    } else {
      optimizer_->param_groups()[0].options().set_lr(lr);
    }
  }
  PartState& user() { return user_; }
  SmallNet& net() { return net_; }
  DistributedSampler& sampler() { return sampler_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  optim::ShardedOptimizer& sharded() { return *sharded_; }
  DdpCore& core() { return ddp_->core(); }

 private:
  void restore_generator() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(random_);
  }
  static SmallNet seeded(int64_t width) {
    torch::manual_seed(1);
    return SmallNet(width);
  }
  DdpOptions options() const {
    DdpOptions options{.bucket_cap_mb = 0.001};
    if (const auto saved = find_checkpoint(folder_)) options.first_buckets = saved->buckets;
    return options;
  }

  ProcessGroup group_;
  std::string folder_;
  SmallNet net_;
  DistributedDataParallel<SmallNetImpl> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<optim::ShardedOptimizer> sharded_;
  DistributedSampler sampler_;
  PartState user_;
  at::Tensor inputs_;
  at::Tensor targets_;
  at::Tensor random_;
  int64_t step_ = 0;
};

}  // namespace brigade::testing
