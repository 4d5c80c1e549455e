// Reduce-scatter, step, all-gather.
#include <ATen/ATen.h>

#include <mutex>
#include <set>

#include "brigade/zero/zero_hooks.h"
#include "engine/all_to_others.h"
#include "engine/average.h"
#include "zero/in_place.h"
#include "zero/messages.h"
#include "zero/parcels.h"
#include "zero/pieces.h"
#include "zero/step.h"
#include "zero/text.h"

namespace brigade::optim {
namespace {

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
    agree_on_groups(group_, text);
  }

  // ---- Hook
  std::string fingerprint() const override {
    std::string text = name();
    for (const Group& each : groups_) text += " " + each.local->fingerprint();
    return text;
  }
  void begin_pass(const HookPass& pass) override {
    pass_ = pass;
    messages_.trim();
  }
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

  std::vector<PieceLayout::Item> pieces_of(const std::vector<BucketItem>& items) const;
  void keep_gradients(std::vector<BucketItem>& items, const at::Tensor& buffer) const;
  void step(const PieceLayout::Item& item, const at::Tensor& gradient);
  void step_whole(const std::vector<PieceLayout::Item>& items, const at::Tensor& buffer);
  Task<void> step_shared(std::vector<PieceLayout::Item> items, at::Tensor buffer,
                         Comm& comm);
  Task<void> step_together(PieceLayout layout, at::Tensor buffer, at::Tensor memory,
                           Comm& comm);
  Task<void> step_alone(PieceLayout::Item item, InPlace exchange, at::Tensor memory,
                        Comm& comm);

  std::vector<Group> groups_;
  const ProcessGroup group_;
  const bool owns_gradients_;
  std::vector<CutParameter> parameters_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  HookPass pass_;
  std::mutex stepping_;  // buckets may be at different stations
  MessageMemory messages_;
};

std::vector<PieceLayout::Item> ZeroHookImpl::pieces_of(
    const std::vector<BucketItem>& items) const {
  std::vector<PieceLayout::Item> pieces;
  for (const BucketItem& item : items) {
    const size_t index = index_of_.at(item.parameter.unsafeGetTensorImpl());
    pieces.push_back({&parameters_[index], item.offset, item.used});
  }
  return pieces;
}

Task<at::Tensor> ZeroHookImpl::reduce(Bucket bucket, Comm& comm) {
  if (comm.size() != group_.size())
    throw ConfigError("the hook \"zero\" was made for " + std::to_string(group_.size()) +
                      " ranks, but works on " + std::to_string(comm.size()));
  at::Tensor buffer = bucket.buffer();
  std::vector<BucketItem> items = items_of(bucket, pass_);
  if (pass_.may_be_unused) co_await agree_on_used(items, buffer.device(), comm);
  if (!pass_.complete) {
    co_await engine::average(bucket, comm);
    keep_gradients(items, buffer);
    co_return buffer;
  }
  if (owns_gradients_) {
    // They are in the bucket; their memory is free for gradients that are still to come.
    for (BucketItem& item : items) item.parameter.mutable_grad() = at::Tensor();
  }
  if (comm.size() == 1) {
    step_whole(pieces_of(items), buffer);
  } else {
    co_await step_shared(pieces_of(items), buffer, comm);
  }
  co_return buffer;
}

// Large parameters one by one, side by side; small ones in common messages.
Task<void> ZeroHookImpl::step_shared(std::vector<PieceLayout::Item> items,
                                     at::Tensor buffer, Comm& comm) {
  std::vector<PieceLayout::Item> large, small;
  for (const PieceLayout::Item& item : items)
    (InPlace::pays(*item.parameter) ? large : small).push_back(item);
  std::vector<InPlace> in_place;
  int64_t needed = 0;
  for (const PieceLayout::Item& item : large) {
    const int64_t length = item.parameter->parameter().numel();
    in_place.emplace_back(*item.parameter, buffer.narrow(0, item.offset, length), me());
    needed += in_place.back().scratch();
  }
  const PieceLayout layout(std::move(small), comm.size(), me());
  const int64_t together = 2 * comm.size() * layout.length();

  // A thread may wait here: those inside are earlier buckets, which have gone on to later
  // stations, and they are the same on every rank. With NCCL a bucket is out at once.
  MessageMemory::Lent lent(messages_);
  const at::Tensor memory = lent.take(together + needed, buffer.options());
  if (large.empty()) {
    co_await step_together(layout, buffer, memory, comm);
    co_return;
  }
  std::vector<at::Tensor> scratch;
  int64_t at = together;
  for (const InPlace& each : in_place) {
    scratch.push_back(memory.narrow(0, at, each.scratch()));
    at += each.scratch();
  }
  const auto lanes = static_cast<int>(large.size());
  co_await comm.split(layout.length() > 0 ? lanes + 1 : lanes, [&](int index, Comm& lane) {
    if (index == lanes)
      return step_together(layout, buffer, memory.narrow(0, 0, together), lane);
    const auto i = static_cast<size_t>(index);
    return step_alone(large[i], in_place[i], scratch[i], lane);
  });
}

Task<void> ZeroHookImpl::step_alone(PieceLayout::Item item, InPlace exchange,
                                    at::Tensor memory, Comm& comm) {
  const at::Tensor mean = co_await exchange.reduce_scatter(memory, comm);
  step(item, mean);
  co_await exchange.all_gather(memory, comm);
}

Task<void> ZeroHookImpl::step_together(PieceLayout layout, at::Tensor buffer,
                                       at::Tensor memory, Comm& comm) {
  const int64_t half = memory.numel() / 2;
  at::Tensor out = memory.narrow(0, 0, half), in = memory.narrow(0, half, half);

  // A reduce-scatter that leaves this rank's own part where it is.
  layout.read_gradients(buffer, out);
  // First for small types, so that no sum overflows; else where there is less to do.
  const bool divided = buffer.element_size() < 4;
  if (divided) layout.others(out).div_(comm.size());
  co_await engine::all_to_others(comm, layout.others(out), layout.others(in));
  at::Tensor mine = layout.chunk(out, me());
  layout.average(buffer, in, divided, mine);
  int64_t at = 0;
  for (const PieceLayout::Item& item : layout.items()) {
    const int64_t length = item.parameter->range(me()).length;
    step(item, mine.narrow(0, at, length));
    at += length;
  }

  if (comm.backend() == "nccl") {
    layout.read(mine);
    co_await comm.all_gather(mine, in);
    layout.write(
        [&](int rank) { return in.narrow(0, rank * layout.length(), layout.length()); });
  } else {
    // Equal messages to all: Gloo's all-gather copies everything once more.
    at::Tensor message = out.narrow(0, 0, layout.length());
    layout.read(message);
    for (int place = 1; place < comm.size() - 1; ++place)
      out.narrow(0, place * layout.length(), layout.length()).copy_(message);
    co_await engine::all_to_others(comm, layout.others(out), layout.others(in));
    layout.write([&](int rank) { return layout.chunk(in, rank); });
  }
}

// A pass whose gradients are not complete: nothing steps, and they stay.
void ZeroHookImpl::keep_gradients(std::vector<BucketItem>& items,
                                  const at::Tensor& buffer) const {
  for (BucketItem& item : items) {
    if (owns_gradients_ && item.used)
      write_gradient(item.parameter, gradient_in(buffer, item.parameter, item.offset));
  }
}

void ZeroHookImpl::step(const PieceLayout::Item& item, const at::Tensor& gradient) {
  const at::Tensor& piece = item.parameter->piece(me());
  if (!item.used || piece.numel() == 0) return;
  std::lock_guard lock(stepping_);
  groups_[item.parameter->group()].local->step_param(piece, gradient);
}

// Alone: a parameter is one piece.
void ZeroHookImpl::step_whole(const std::vector<PieceLayout::Item>& items,
                              const at::Tensor& buffer) {
  for (const PieceLayout::Item& item : items)
    step(item, buffer.narrow(0, item.offset, item.parameter->parameter().numel()));
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
