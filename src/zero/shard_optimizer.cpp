// The optimizers that step one rank's share: brigade's and torch's.
#include <ATen/ATen.h>

#include "brigade/optim.h"
#include "brigade/zero.h"
#include "optim/torch_state.h"

namespace brigade::optim {
namespace {

class FunctionalShard : public ShardOptimizer {
 public:
  explicit FunctionalShard(std::shared_ptr<Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {
    if (!optimizer_)
      throw ConfigError("ZeRO: the function that makes optimizers gave none");
  }
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient) override {
    optimizer_->step_param(parameter, gradient);
  }
  double lr() const override {
    double lr = 0;
    detail::parse(optimizer_->state({}).values, "options.lr", lr);
    return lr;
  }
  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  OptimizerState state(const NamedParameters& parameters) const override {
    return optimizer_->state(parameters);
  }
  void load_state(const OptimizerState& state, const NamedParameters& parameters) override {
    optimizer_->load_state(state, parameters);
  }
  std::string fingerprint() const override { return optimizer_->fingerprint(); }

 private:
  const std::shared_ptr<Optimizer> optimizer_;
};

// An optimizer of torch takes the gradient from the parameter's grad(), which the Reducer
// may be writing at the same time. So it gets other tensors with the same memory.
class TorchShard : public ShardOptimizer {
 public:
  using Make = std::function<std::shared_ptr<torch::optim::Optimizer>(
      const std::vector<at::Tensor>& share)>;
  TorchShard(const Make& make, const std::vector<at::Tensor>& share) {
    std::vector<at::Tensor> twins;
    for (const at::Tensor& parameter : share) {
      twins.push_back(parameter.detach());
      twin_of_[parameter.unsafeGetTensorImpl()] = twins.back();
    }
    optimizer_ = functional(make(twins));
    check_groups(share.size());
  }

  void step_param(const at::Tensor& parameter, const at::Tensor& gradient) override {
    at::Tensor twin = twin_of(parameter);
    if (twin.data_ptr() != parameter.data_ptr()) twin.set_data(parameter.detach());
    optimizer_->step_param(twin, gradient.scalar_type() == twin.scalar_type()
                                     ? gradient
                                     : gradient.to(twin.scalar_type()));
  }
  double lr() const override { return first_group().options().get_lr(); }
  void set_lr(double lr) override {
    for (auto& group : torch().param_groups()) group.options().set_lr(lr);
  }

  OptimizerState state(const NamedParameters& parameters) const override {
    const TorchKind& kind = this->kind();
    OptimizerState out;
    out.values["optimizer"] = kind.name;
    write_options(kind, first_group().options(), "options.", out);
    for (const auto& [name, parameter] : parameters) {
      const auto& states = torch().state();
      const auto found = states.find(twin_of(parameter).unsafeGetTensorImpl());
      if (found != states.end()) write_state(kind, *found->second, name + ".", out);
    }
    return out;
  }
  void load_state(const OptimizerState& in, const NamedParameters& parameters) override {
    const TorchKind& kind = this->kind();
    const auto saved = in.values.find("optimizer");
    if (saved == in.values.end() || saved->second != kind.name) {
      throw ConfigError(std::string(kind.name) + ": the state is of " +
                        (saved == in.values.end() ? "no optimizer" : saved->second));
    }
    auto options = first_group().options().clone();
    read_options(kind, in, "options.", *options);
    std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>
        states;
    for (const auto& [name, parameter] : parameters) {
      states.emplace_back(twin_of(parameter).unsafeGetTensorImpl(),
                          read_state(kind, in, name + ".", parameter));
    }
    for (auto& [key, state] : states) {
      torch().state().erase(key);
      if (state) torch().state()[key] = state->clone();
    }
    first_group().set_options(std::move(options));
  }
  std::string fingerprint() const override { return optimizer_->fingerprint(); }

 private:
  torch::optim::Optimizer& torch() const { return optimizer_->optimizer(); }
  torch::optim::OptimizerParamGroup& first_group() const {
    return torch().param_groups().at(0);
  }
  const TorchKind& kind() const {
    if (const TorchKind* kind = torch_kind(torch())) return *kind;
    throw ConfigError(std::string("ZeRO can move and save the state of torch::optim's ") +
                      kTorchKinds + ", not of this one; use one of brigade::optim");
  }
  // Only one group is allowed: ZeRO has groups of its own, and a rank's share may have no
  // parameter of some group.
  void check_groups(size_t expected) const {
    const auto& groups = torch().param_groups();
    const size_t found = groups.size() == 1 ? groups[0].params().size() : 0;
    if (groups.size() == 1 && found == expected) return;
    throw ConfigError("ZeRO: the torch optimizer has " + std::to_string(groups.size()) +
                      " groups, the first with " + std::to_string(found) +
                      " parameters, but must have one, with the " +
                      std::to_string(expected) +
                      " that the function got; give ZeRO a ZeroGroup for each group");
  }
  const at::Tensor& twin_of(const at::Tensor& parameter) const {
    const auto found = twin_of_.find(parameter.unsafeGetTensorImpl());
    TORCH_INTERNAL_ASSERT(found != twin_of_.end());
    return found->second;
  }

  std::unordered_map<const c10::TensorImpl*, at::Tensor> twin_of_;
  std::shared_ptr<TorchOptimizer> optimizer_;
};

}  // namespace

ShardFactory::ShardFactory(std::string spec) {
  make_optimizer(spec);  // fails now, not when the first share is there
  make_ = [spec = std::move(spec)](const std::vector<at::Tensor>&) {
    return std::make_shared<FunctionalShard>(make_optimizer(spec));
  };
}

ShardFactory ShardFactory::of_functional(Maker<Optimizer> make) {
  ShardFactory factory;
  factory.make_ = [make = std::move(make)](const std::vector<at::Tensor>& share) {
    return std::make_shared<FunctionalShard>(make(share));
  };
  return factory;
}

ShardFactory ShardFactory::of_torch(Maker<torch::optim::Optimizer> make) {
  ShardFactory factory;
  factory.make_ = [make = std::move(make)](const std::vector<at::Tensor>& share) {
    return std::make_shared<TorchShard>(make, share);
  };
  return factory;
}

int64_t ShardedOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, tensor] : shard_state().tensors)
    bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace brigade::optim
