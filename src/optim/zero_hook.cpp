// Reduce-scatter, step, all-gather.
#include <ATen/ATen.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <set>

#include "brigade/optim/zero_hooks.h"
#include "ddp/core_state.h"
#include "optim/zero_parcels.h"
#include "optim/zero_pieces.h"
#include "optim/zero_step.h"
#include "optim/zero_text.h"

namespace brigade::optim {
namespace {

// Memory for the messages of two buckets at a time, used again and again: for all of them
// it would take what ZeRO saves.
class MessageMemory {
 public:
  // What one bucket has, while this lives.
  class Lent {
   public:
    explicit Lent(MessageMemory& owner) : owner_(owner) {
      std::unique_lock lock(owner.mutex_);
      owner.returned_.wait(lock, [&] { return !owner.free_.empty(); });
      memory_ = std::move(owner.free_.back());
      owner.free_.pop_back();
    }
    Lent(const Lent&) = delete;
    ~Lent() {
      std::lock_guard lock(owner_.mutex_);
      owner_.free_.push_back(std::move(memory_));
      owner_.returned_.notify_one();
    }
    // Two tensors with any content. On a device, where the allocator itself keeps memory
    // and knows the streams, new ones each time.
    std::pair<at::Tensor, at::Tensor> take(int64_t length,
                                           const at::TensorOptions& options) {
      if (!options.device().is_cpu())
        return {at::empty({length}, options), at::empty({length}, options)};
      const int64_t bytes = length * static_cast<int64_t>(options.dtype().itemsize());
      for (at::Tensor& each : memory_) {
        if (!each.defined() || each.numel() < bytes) each = at::empty({bytes}, at::kByte);
      }
      const auto part = [&](const at::Tensor& whole) {
        return whole.narrow(0, 0, bytes).view(c10::typeMetaToScalarType(options.dtype()));
      };
      return {part(memory_[0]), part(memory_[1])};
    }

   private:
    MessageMemory& owner_;
    std::array<at::Tensor, 2> memory_;
  };
  // After an error somebody may still write there.
  void forget() {
    std::lock_guard lock(mutex_);
    for (auto& each : free_) each = {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::array<at::Tensor, 2>> free_{2};
};

class ZeroHookImpl : public ZeroHook {
 public:
  // `owns_gradients`: nobody writes reduced gradients into the parameters' grad() but this
  // hook.
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
      groups_[g].local = groups_[g].factory(tensors_of(share_of(g)));
      text += describe(groups_[g].parameters, groups_[g].local->fingerprint());
    }
    agree_on(group_, "ZeRO", text);
  }

  // ---- Hook
  std::string fingerprint() const override {
    std::string text = name();
    for (const Group& each : groups_) text += " " + each.local->fingerprint();
    return text;
  }
  void begin_pass(const HookPass& pass) override { pass_ = pass; }
  void reset() override { messages_.forget(); }  // the optimizers stay as they are
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

  // ---- ShardedOptimizer
  using ZeroHook::load_state;
  OptimizerState shard_state() const override;
  std::function<void()> load_shards(const std::vector<OptimizerState>& shards,
                                    int saved_ranks) override;
  OptimizerState consolidate(int to) const override;
  void load_state(const OptimizerState& whole) override {
    become(fresh(cut_pieces(flatten_state(whole, parameters_), parameters_, me())));
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
  // This rank's pieces, by the names of their parameters.
  NamedParameters share_of(size_t group) const {
    NamedParameters share;
    for (const CutParameter& each : parameters_) {
      if (each.group() != group || each.range(me()).length == 0) continue;
      share.emplace_back(each.name(), each.piece(me()));
    }
    return share;
  }
  Locals fresh(const OptimizerState& state) const;
  void become(Locals locals) {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].local = std::move(locals[g]);
  }

  PieceLayout layout_of(const std::vector<BucketItem>& items) const;
  Task<void> average(std::vector<BucketItem> items, at::Tensor buffer, Comm& comm) const;
  void step(const PieceLayout& layout, const at::Tensor& chunk);
  void step_whole(const std::vector<BucketItem>& items, const at::Tensor& buffer);
  Task<void> step_shared(PieceLayout layout, at::Tensor buffer, Comm& comm);

  std::vector<Group> groups_;
  const ProcessGroup group_;
  const bool owns_gradients_;
  std::vector<CutParameter> parameters_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  HookPass pass_;
  std::mutex stepping_;  // buckets may be at different stations
  MessageMemory messages_;
};

PieceLayout ZeroHookImpl::layout_of(const std::vector<BucketItem>& items) const {
  std::vector<PieceLayout::Item> pieces;
  for (const BucketItem& item : items) {
    const size_t index = index_of_.at(item.parameter.unsafeGetTensorImpl());
    pieces.push_back({&parameters_[index], item.offset, item.used});
  }
  return PieceLayout(std::move(pieces), group_.size());
}

Task<at::Tensor> ZeroHookImpl::reduce(Bucket bucket, Comm& comm) {
  if (comm.size() != group_.size())
    throw ConfigError("the hook \"zero\" was made for " + std::to_string(group_.size()) +
                      " ranks, but works on " + std::to_string(comm.size()));
  at::Tensor buffer = bucket.buffer();
  std::vector<BucketItem> items = items_of(bucket, pass_);
  if (pass_.may_be_unused) co_await agree_on_used(items, buffer.device(), comm);
  if (!pass_.complete) {
    co_await average(items, buffer, comm);
    co_return buffer;
  }
  if (owns_gradients_) {
    // They are in the bucket; their memory is free for gradients that are still to come.
    for (BucketItem& item : items) item.parameter.mutable_grad() = at::Tensor();
  }
  if (comm.size() == 1) {
    step_whole(items, buffer);
  } else {
    co_await step_shared(layout_of(items), buffer, comm);
  }
  co_return buffer;
}

Task<void> ZeroHookImpl::step_shared(PieceLayout layout, at::Tensor buffer, Comm& comm) {
  // A thread may wait here: those inside are earlier buckets, which have gone on to later
  // stations, and they are the same on every rank. With NCCL a bucket is out at once.
  MessageMemory::Lent memory(messages_);
  auto [out, in] = memory.take(comm.size() * layout.length(), buffer.options());

  // A reduce-scatter that leaves this rank's own part where it is.
  layout.read_gradients(buffer, me(), out);
  // First for small types, so that no sum overflows; else where there is less to do.
  const bool divided = buffer.element_size() < 4;
  if (divided) out.div_(comm.size());
  co_await comm.all_to_all(out, in);
  at::Tensor mine = layout.chunk(out, me());
  layout.average(buffer, in, me(), divided, mine);
  step(layout, mine);

  if (comm.backend() == "nccl") {
    layout.read(me(), mine);
    co_await comm.all_gather(mine, in);
  } else {
    // An all-to-all of equal messages: Gloo's all-gather copies everything once more.
    const int first = me() == 0 ? 1 : 0;
    layout.read(me(), layout.chunk(out, first));
    for (int rank = first + 1; rank < comm.size(); ++rank)
      if (rank != me()) layout.chunk(out, rank).copy_(layout.chunk(out, first));
    co_await comm.all_to_all(out, in);
  }
  layout.write(in, me());
}

// A pass whose gradients are not complete: nothing steps, and they stay.
Task<void> ZeroHookImpl::average(std::vector<BucketItem> items, at::Tensor buffer,
                                 Comm& comm) const {
  buffer.div_(comm.size());
  co_await comm.all_reduce(buffer);
  for (BucketItem& item : items) {
    if (owns_gradients_ && item.used)
      write_gradient(item.parameter, gradient_in(buffer, item.parameter, item.offset));
  }
}

void ZeroHookImpl::step(const PieceLayout& layout, const at::Tensor& chunk) {
  std::lock_guard lock(stepping_);
  int64_t at = 0;
  for (const PieceLayout::Item& item : layout.items()) {
    const at::Tensor& piece = item.parameter->piece(me());
    if (item.used && piece.numel() > 0) {
      groups_[item.parameter->group()].local->step_param(
          piece, chunk.narrow(0, at, piece.numel()));
    }
    at += piece.numel();
  }
}

// Alone: a parameter is one piece.
void ZeroHookImpl::step_whole(const std::vector<BucketItem>& items,
                              const at::Tensor& buffer) {
  for (const BucketItem& item : items) {
    const CutParameter& cut =
        parameters_[index_of_.at(item.parameter.unsafeGetTensorImpl())];
    if (!item.used || cut.piece(0).numel() == 0) continue;
    groups_[cut.group()].local->step_param(
        cut.piece(0), buffer.narrow(0, item.offset, cut.piece(0).numel()));
  }
}

// ---- state ------------------------------------------------------------------------------

OptimizerState ZeroHookImpl::shard_state() const {
  OptimizerState all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptimizerState state = groups_[g].local->state(share_of(g));
    state.values[kNamesKey] = names_of(groups_[g].parameters);
    merge(all, with_prefix(group_prefix(g), state));
  }
  return all;
}

ZeroHookImpl::Locals ZeroHookImpl::fresh(const OptimizerState& state) const {
  Locals locals;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const OptimizerState of_group = without_prefix(group_prefix(g), state);
    check_names(of_group, groups_[g].parameters);
    const NamedParameters share = share_of(g);
    locals.push_back(groups_[g].factory(tensors_of(share)));
    locals.back()->load_state(of_group, share);
  }
  return locals;
}

std::function<void()> ZeroHookImpl::load_shards(const std::vector<OptimizerState>& shards,
                                                int saved_ranks) {
  if (shards.empty()) throw ConfigError("ZeRO: there is no state to load");
  OptimizerState mine = shards.front();
  if (saved_ranks != group_.size())
    mine = cut_pieces(join_pieces(shards, parameters_), parameters_, me());
  return [this, locals = fresh(mine)] { become(locals); };
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
  return shape_state(join_pieces(shards, parameters_), parameters_);
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
  const DdpCore::State& model = core.state();
  std::set<const c10::TensorImpl*> given;
  for (const ZeroGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      given.insert(parameter.unsafeGetTensorImpl());
      if (!model.name_of.contains(parameter.unsafeGetTensorImpl()))
        throw ConfigError("apply_zero_in_backward: parameter '" + name +
                          "' is not one that DistributedDataParallel trains");
    }
  }
  for (size_t i = 0; i < model.trained.size(); ++i) {
    if (!given.contains(model.trained[i].unsafeGetTensorImpl()))
      throw ConfigError("apply_zero_in_backward: parameter '" + model.names[i] +
                        "' is in no group, and so would have no gradient and no step");
    if (model.sparse[i])
      throw ConfigError("apply_zero_in_backward: parameter '" + model.names[i] +
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
