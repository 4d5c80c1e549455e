// apply_zero_in_backward: the hook "zero", which steps each bucket between a reduce-scatter
// and an all-gather.
#include <ATen/ATen.h>

#include <mutex>
#include <set>

#include "brigade/zero.h"
#include "exchange/sharded_exchange.h"
#include "optim/step_hook.h"
#include "zero/shard_state.h"
#include "zero/zero_groups.h"

namespace brigade::optim {
namespace {

class ZeroHookImpl : public ZeroHook {
 public:
  // `owns_gradients`: only this hook writes reduced gradients into the parameters' grad().
  ZeroHookImpl(std::vector<ZeroGroup> groups, ProcessGroup group, bool owns_gradients)
      : group_(std::move(group)), owns_gradients_(owns_gradients) {
    for (ZeroGroup& given : groups) {
      for (const auto& [name, parameter] : given.parameters) {
        index_of_[parameter.unsafeGetTensorImpl()] = parameters_.size();
        parameters_.emplace_back(name, parameter, parameters_.size(), groups_.size(),
                                 group_.size());
      }
      groups_.push_back({std::move(given.parameters), std::move(given.optimizer)});
    }
    std::string text;
    for (size_t g = 0; g < groups_.size(); ++g) {
      groups_[g].local = groups_[g].factory(tensors_of(shards_of(g)));
      text += describe(groups_[g].parameters, groups_[g].local->fingerprint());
    }
    check_same_groups(group_, text);
  }

  // ---- Hook
  std::string fingerprint() const override {
    std::string text = name();
    for (const Group& each : groups_) text += " " + each.local->fingerprint();
    return text;
  }
  void begin_pass(const HookPass& pass) override {
    pass_ = pass;
    exchange_.begin_pass();
  }
  void check_dtype(at::ScalarType dtype) const override {
    if (c10::isComplexType(dtype)) refuse_complex(dtype);
  }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

  // ---- ShardedOptimizer
  OptimizerState shard_state() const override;
  std::function<void()> load_shards(const std::vector<OptimizerState>& shards,
                                    int saved_ranks) override;
  OptimizerState consolidate(int to) const override;
  void load_consolidated(const OptimizerState& whole) override {
    adopt(load_into_new(cut_shards(flatten_state(whole, parameters_), parameters_, me())));
  }
  void set_lr(double lr) override {
    for (Group& each : groups_) each.local->set_lr(lr);
  }
  void set_lr(size_t group, double lr) override { groups_.at(group).local->set_lr(lr); }
  double lr(size_t group) const override { return groups_.at(group).local->lr(); }

 private:
  struct Group {
    NamedParameters parameters;
    ShardFactory factory;
    std::shared_ptr<ShardOptimizer> local = nullptr;
  };
  using Locals = std::vector<std::shared_ptr<ShardOptimizer>>;

  int me() const { return group_.rank(); }
  static std::vector<at::Tensor> tensors_of(const NamedParameters& parameters) {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
    return tensors;
  }
  // Returns this rank's shards, by the names of their parameters.
  NamedParameters shards_of(size_t group) const {
    NamedParameters share;
    for (const ShardedParameter& each : parameters_) {
      if (each.group() != group || each.range(me()).length == 0) continue;
      share.emplace_back(each.name(), each.shard(me()));
    }
    return share;
  }
  Locals load_into_new(const OptimizerState& state) const;
  void adopt(Locals locals) {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].local = std::move(locals[g]);
  }

  std::vector<ShardedItem> sharded(const std::vector<BucketItem>& items) const;
  void keep_gradients(std::vector<BucketItem>& items, const at::Tensor& buffer) const;
  void step(const ShardedItem& item, const at::Tensor& gradient);
  void step_whole(const std::vector<ShardedItem>& items, const at::Tensor& buffer);

  std::vector<Group> groups_;
  const ProcessGroup group_;
  const bool owns_gradients_;
  std::vector<ShardedParameter> parameters_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  HookPass pass_;
  std::mutex stepping_;  // buckets may be at different stations
  ShardedExchange exchange_;
};

std::vector<ShardedItem> ZeroHookImpl::sharded(const std::vector<BucketItem>& items) const {
  std::vector<ShardedItem> sharded;
  for (const BucketItem& item : items) {
    const size_t index = index_of_.at(item.parameter.unsafeGetTensorImpl());
    sharded.push_back({&parameters_[index], item.offset, item.used});
  }
  return sharded;
}

Task<at::Tensor> ZeroHookImpl::reduce(Bucket bucket, Comm& comm) {
  if (comm.size() != group_.size())
    throw ConfigError("the hook \"zero\" was made for " + std::to_string(group_.size()) +
                      " ranks, but works on " + std::to_string(comm.size()));
  at::Tensor buffer = bucket.buffer();
  std::vector<BucketItem> items = items_of(bucket, pass_);
  if (pass_.may_be_unused) co_await agree_on_used(items, buffer.device(), comm);
  if (!pass_.complete) {
    co_await average(bucket, comm);
    keep_gradients(items, buffer);
    co_return buffer;
  }
  if (owns_gradients_) {
    // The gradients are in the bucket; later gradients can use their memory.
    for (BucketItem& item : items) item.parameter.mutable_grad() = at::Tensor();
  }
  if (comm.size() == 1) {
    step_whole(sharded(items), buffer);
  } else {
    const auto change = [this](const ShardedItem& item, const at::Tensor& mean) {
      step(item, mean);
    };
    co_await exchange_.run(sharded(items), buffer, change, comm);
  }
  co_return buffer;
}

// Used in a pass that leaves gradients incomplete: nothing steps, and they stay.
void ZeroHookImpl::keep_gradients(std::vector<BucketItem>& items,
                                  const at::Tensor& buffer) const {
  for (BucketItem& item : items) {
    if (owns_gradients_ && item.used)
      write_gradient(item.parameter, gradient_in(buffer, item.parameter, item.offset));
  }
}

void ZeroHookImpl::step(const ShardedItem& item, const at::Tensor& gradient) {
  const at::Tensor& shard = item.parameter->shard(me());
  if (!item.used || shard.numel() == 0) return;
  std::lock_guard lock(stepping_);
  groups_[item.parameter->group()].local->step_param(shard, gradient);
}

// With one rank a parameter is one shard.
void ZeroHookImpl::step_whole(const std::vector<ShardedItem>& items,
                              const at::Tensor& buffer) {
  for (const ShardedItem& item : items)
    step(item, buffer.narrow(0, item.offset, item.parameter->parameter().numel()));
}

// ---- state ------------------------------------------------------------------------------

OptimizerState ZeroHookImpl::shard_state() const {
  OptimizerState all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptimizerState state = groups_[g].local->state(shards_of(g));
    state.values[kNamesKey] = names_of(groups_[g].parameters);
    merge(all, with_prefix(group_prefix(g), state));
  }
  return all;
}

ZeroHookImpl::Locals ZeroHookImpl::load_into_new(const OptimizerState& state) const {
  Locals locals;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const OptimizerState of_group = without_prefix(group_prefix(g), state);
    check_names(of_group, groups_[g].parameters);
    const NamedParameters shards = shards_of(g);
    locals.push_back(groups_[g].factory(tensors_of(shards)));
    locals.back()->load_state(of_group, shards);
  }
  return locals;
}

std::function<void()> ZeroHookImpl::load_shards(const std::vector<OptimizerState>& shards,
                                                int saved_ranks) {
  if (shards.empty()) throw ConfigError("ZeRO: there is no state to load");
  OptimizerState mine = shards.front();
  if (saved_ranks != group_.size())
    mine = cut_shards(join_shards(shards, parameters_), parameters_, me());
  return [this, locals = load_into_new(mine)] { adopt(locals); };
}

OptimizerState ZeroHookImpl::consolidate(int to) const {
  check_root(to, group_);
  const auto prefix = [](int rank) { return "rank." + std::to_string(rank) + "/"; };
  const OptimizerState all =
      consolidated(group_, with_prefix(prefix(me()), shard_state()), to);
  if (me() != to) return {};
  std::vector<OptimizerState> shards;
  for (int rank = 0; rank < group_.size(); ++rank)
    shards.push_back(without_prefix(prefix(rank), all));
  return shape_state(join_shards(shards, parameters_), parameters_);
}

// ---- making it --------------------------------------------------------------------------

class ZeroAttachment : public InBackward {
 public:
  ZeroAttachment(std::shared_ptr<ZeroHook> hook, std::vector<at::Tensor> parameters)
      : hook_(std::move(hook)), parameters_(std::move(parameters)) {}
  std::shared_ptr<Hook> behind(std::shared_ptr<Hook> other) override {
    if (other)
      throw ConfigError(
          "the model's gradients are reduced by \"zero\", which has no place "
          "for the hook '" +
          other->name() +
          "'; take it off first with set_in_backward(nullptr), or use "
          "hook_with_zero_step_interleaved");
    return hook_;
  }
  const std::vector<at::Tensor>& parameters() const override { return parameters_; }

 private:
  const std::shared_ptr<ZeroHook> hook_;
  const std::vector<at::Tensor> parameters_;
};

void check_dense(const std::vector<ZeroGroup>& groups) {
  for (const ZeroGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      if (!parameter.is_non_overlapping_and_dense())
        throw ConfigError("apply_zero_in_backward: parameter '" + name +
                          "' is not dense in memory; make it contiguous() first");
    }
  }
}

void check(DdpCore& core, const std::vector<ZeroGroup>& groups) {
  if (core.in_backward())
    throw ConfigError(
        "apply_zero_in_backward: the model has an optimizer in its backward "
        "pass already");
  if (core.options().mixed_precision) {
    throw ConfigError(
        "apply_zero_in_backward can't go with mixed_precision: it reduces gradients "
        "itself, "
        "in their own dtype. Use hook_with_zero_step_interleaved with shard_buckets");
  }
  std::set<const c10::TensorImpl*> given;
  for (const ZeroGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      given.insert(parameter.unsafeGetTensorImpl());
      if (!core.trains(parameter))
        throw ConfigError("apply_zero_in_backward: parameter '" + name +
                          "' is not one that DistributedDataParallel trains");
    }
  }
  for (size_t i = 0; i < core.parameters().size(); ++i) {
    const std::string& name = core.parameter_names()[i];
    if (!given.contains(core.parameters()[i].unsafeGetTensorImpl()))
      throw ConfigError("apply_zero_in_backward: parameter '" + name +
                        "' is in no group, and so would have no gradient and no step");
    if (core.sparse_gradients()[i])
      throw ConfigError("apply_zero_in_backward: parameter '" + name +
                        "' has sparse gradients, which can't be divided; use "
                        "hook_with_zero_step_interleaved");
  }
}

}  // namespace

std::shared_ptr<ZeroHook> make_zero_hook(std::vector<ZeroGroup> groups, ProcessGroup group,
                                         bool owns_gradients) {
  check_groups(groups, group, {}, {});
  check_dense(groups);
  return std::make_shared<ZeroHookImpl>(std::move(groups), std::move(group),
                                        owns_gradients);
}

std::shared_ptr<ZeroHook> apply_zero_in_backward(DdpCore& core,
                                                 std::vector<ZeroGroup> groups) {
  check(core, groups);
  auto hook = make_zero_hook(std::move(groups), core.group(),
                             !core.options().gradient_as_bucket_view);
  core.set_hook(nullptr);
  core.set_in_backward(std::make_shared<ZeroAttachment>(hook, core.parameters()));
  return hook;
}

std::shared_ptr<ZeroHook> apply_zero_in_backward(DdpCore& core, ShardFactory optimizer) {
  NamedParameters all;
  for (size_t i = 0; i < core.parameters().size(); ++i)
    all.emplace_back(core.parameter_names()[i], core.parameters()[i]);
  std::vector<ZeroGroup> groups;
  groups.push_back({std::move(all), std::move(optimizer)});
  return apply_zero_in_backward(core, std::move(groups));
}

}  // namespace brigade::optim
