#include "brigade/zero.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <sstream>

#include "base/huge_pages.h"
#include "exchange/flat_buffer.h"
#include "exchange/state_transport.h"
#include "zero/shard_state.h"
#include "zero/zero_groups.h"

namespace brigade::optim {
namespace {

std::vector<at::Tensor> tensors_of(const NamedParameters& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  return tensors;
}

// Gives each parameter, the largest first, to the rank with the least load; of several, to
// the lowest. `loads`: what the ranks have already.
std::vector<int> assign_owners(const NamedParameters& parameters,
                               std::vector<int64_t> loads) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parameters[a].second.numel() > parameters[b].second.numel();
  });
  std::vector<int> owners(parameters.size());
  for (const size_t index : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[index] = static_cast<int>(least - loads.begin());
    *least += parameters[index].second.numel();
  }
  return owners;
}

std::vector<ZeroGroup> trained_by(const DdpCore& core, ShardFactory optimizer) {
  NamedParameters parameters;
  for (size_t i = 0; i < core.parameters().size(); ++i)
    parameters.emplace_back(core.parameter_names()[i], core.parameters()[i]);
  std::vector<ZeroGroup> groups;
  groups.push_back({std::move(parameters), std::move(optimizer)});
  return groups;
}

}  // namespace

// ---- ZeroRedundancyOptimizer ------------------------------------------------------------

struct ZeroRedundancyOptimizer::Sender : FlatSender {
  using FlatSender::FlatSender;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<ZeroGroup> groups,
                                                 ProcessGroup group, ZeroOptions options)
    : group_(std::move(group)), options_(options) {
  if (groups.empty()) throw ConfigError("ZeRO got no parameters");
  check_groups(groups, group_, {}, {});
  for (ZeroGroup& each : groups) add_unchecked(std::move(each));
  check_same();
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(DdpCore& core, ShardFactory optimizer,
                                                 ZeroOptions options)
    : ZeroRedundancyOptimizer(trained_by(core, std::move(optimizer)), core.group(),
                              options) {
  model_ = core.handle();
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

void ZeroRedundancyOptimizer::add_group(ZeroGroup group) {
  std::set<std::string> names;
  std::set<const c10::TensorImpl*> tensors;
  for (const Group& each : groups_) {
    for (const auto& [name, tensor] : each.parameters) {
      names.insert(name);
      tensors.insert(tensor.unsafeGetTensorImpl());
    }
  }
  check_groups({group}, group_, std::move(names), std::move(tensors));
  add_unchecked(std::move(group));
  check_same();
}

void ZeroRedundancyOptimizer::add_unchecked(ZeroGroup given) {
  std::vector<int64_t> loads;
  for (int rank = 0; rank < group_.size(); ++rank) loads.push_back(share(rank));
  const std::vector<int> owners = assign_owners(given.parameters, std::move(loads));
  std::vector<at::Tensor> mine;
  for (size_t i = 0; i < owners.size(); ++i)
    if (owners[i] == group_.rank()) mine.push_back(given.parameters[i].second);
  std::shared_ptr<ShardOptimizer> local = given.optimizer(mine);
  for (size_t i = 0; i < owners.size(); ++i) {
    const at::Tensor& parameter = given.parameters[i].second;
    places_[parameter.unsafeGetTensorImpl()] = {parameters_.size(), groups_.size()};
    parameters_.push_back(parameter);
    owners_.push_back(owners[i]);
    // It is sent from where it is: a step of 64 MB between two ranks takes 3 ms less.
    if (group_.size() > 1) base::advise_huge_pages(parameter);
  }
  groups_.push_back(
      {std::move(given.parameters), std::move(given.optimizer), std::move(local)});
  if (sender_) sender_->clear();
}

void ZeroRedundancyOptimizer::check_same() const {
  std::string text;
  for (const Group& each : groups_)
    text += describe(each.parameters, each.local->fingerprint());
  check_same_groups(group_, text);
}

std::string ZeroRedundancyOptimizer::fingerprint() const {
  std::string text;
  for (const Group& each : groups_)
    text += (text.empty() ? "" : " and ") + each.local->fingerprint();
  return text;
}

int ZeroRedundancyOptimizer::owner(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? -1 : owners_[found->second.index];
}

int64_t ZeroRedundancyOptimizer::share(int rank) const {
  int64_t elements = 0;
  for (size_t i = 0; i < owners_.size(); ++i)
    if (owners_[i] == rank) elements += parameters_[i].numel();
  return elements;
}

// ---- stepping

void ZeroRedundancyOptimizer::step() {
  at::NoGradGuard no_grad;
  if (model_.joining()) {
    throw ConfigError(
        "ZeroRedundancyOptimizer::step can't be called inside of join(): ranks that have "
        "no more input do not call it, and the others would wait for them; use "
        "hook_with_zero_step, hook_with_zero_step_interleaved or apply_zero_in_backward");
  }
  // All are stepped first. Stepping one while another is sent gained nothing on a machine
  // that is busy with its own ranks' messages.
  for (const at::Tensor& parameter : parameters_)
    if (parameter.grad().defined()) step_own(parameter, parameter.grad());
  if (group_.size() == 1) return;
  prepare_sender();
  sender_->send();
}

void ZeroRedundancyOptimizer::zero_grad(bool set_to_none) const {
  brigade::zero_grad(parameters_, set_to_none);
}

void ZeroRedundancyOptimizer::step_own(const at::Tensor& parameter,
                                       const at::Tensor& gradient) {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found == places_.end() || owners_[found->second.index] != group_.rank()) return;
  groups_[found->second.group].local->step_param(parameter, gradient);
}

void ZeroRedundancyOptimizer::prepare_sender() {
  if (!sender_) sender_ = std::make_unique<Sender>(group_);
  if (!sender_->laid_out())
    sender_->lay_out(parameters_, owners_, options_.parameters_as_bucket_view);
}

// ---- options

void ZeroRedundancyOptimizer::set_lr(double lr) {
  for (const Group& each : groups_) each.local->set_lr(lr);
}

void ZeroRedundancyOptimizer::set_lr(size_t group, double lr) {
  groups_.at(group).local->set_lr(lr);
}

double ZeroRedundancyOptimizer::lr(size_t group) const {
  return groups_.at(group).local->lr();
}

// ---- state

NamedParameters ZeroRedundancyOptimizer::share_of(const Group& group,
                                                  const std::vector<int>& owners) const {
  NamedParameters share;
  for (const auto& [name, tensor] : group.parameters) {
    const size_t index = places_.at(tensor.unsafeGetTensorImpl()).index;
    if (owners[index] == group_.rank()) share.emplace_back(name, tensor);
  }
  return share;
}

OptimizerState ZeroRedundancyOptimizer::shard_state() const {
  OptimizerState all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptimizerState state = groups_[g].local->state(share_of(groups_[g], owners_));
    state.values[kNamesKey] = names_of(groups_[g].parameters);
    merge(all, with_prefix(group_prefix(g), state));
  }
  std::string owners;
  for (const int owner : owners_) owners += std::to_string(owner) + " ";
  all.values[kOwnersKey] = owners;
  return all;
}

ZeroRedundancyOptimizer::Locals ZeroRedundancyOptimizer::load_into_new(
    const OptimizerState& state, const std::vector<int>& owners) const {
  Locals locals;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const OptimizerState of_group = without_prefix(group_prefix(g), state);
    check_names(of_group, groups_[g].parameters);
    const NamedParameters share = share_of(groups_[g], owners);
    locals.push_back(groups_[g].factory(tensors_of(share)));
    locals.back()->load_state(of_group, share);
  }
  return locals;
}

void ZeroRedundancyOptimizer::adopt(Locals locals, std::vector<int> owners) {
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].local = std::move(locals[g]);
  owners_ = std::move(owners);
  if (sender_) sender_->clear();
}

std::function<void()> ZeroRedundancyOptimizer::load_shards(
    const std::vector<OptimizerState>& shards, int saved_ranks) {
  if (shards.empty()) throw ConfigError("ZeRO: there is no state to load");
  OptimizerState state = shards.front();
  std::vector<int> owners = owners_;
  if (saved_ranks == group_.size()) {
    // These are the owners at saving: a rank has only its own shard.
    std::istringstream text(state.values[kOwnersKey]);
    owners.assign(std::istream_iterator<int>(text), {});
    const bool fits = owners.size() == owners_.size() &&
                      std::all_of(owners.begin(), owners.end(), [&](int owner) {
                        return owner >= 0 && owner < group_.size();
                      });
    if (!fits) throw ConfigError("ZeRO: the state does not say who owns what");
  } else {
    for (size_t i = 1; i < shards.size(); ++i) merge(state, shards[i]);
  }
  return [this, locals = load_into_new(state, owners), owners] { adopt(locals, owners); };
}

void ZeroRedundancyOptimizer::load_consolidated(const OptimizerState& whole) {
  adopt(load_into_new(whole, owners_), owners_);
}

OptimizerState ZeroRedundancyOptimizer::consolidate(int to) const {
  check_root(to, group_);
  return consolidated(group_, shard_state(), to);
}

void ZeroRedundancyOptimizer::assign(const std::vector<int>& owners) {
  TORCH_INTERNAL_ASSERT(owners.size() == owners_.size());
  if (owners == owners_) return;
  std::map<int, OptimizerState> by_rank;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::map<int, NamedParameters> by_owner;
    for (const auto& [name, parameter] : share_of(groups_[g], owners_)) {
      const size_t index = places_.at(parameter.unsafeGetTensorImpl()).index;
      by_owner[owners[index]].emplace_back(name, parameter);
    }
    for (const auto& [to, parameters] : by_owner) {
      merge(by_rank[to], with_prefix(group_prefix(g), groups_[g].local->state(parameters)));
    }
  }
  OptimizerState state = exchange_states(group_, by_rank, parameters_.front().device());
  merge(state, shard_state());  // options, if no rank has sent any
  adopt(load_into_new(state, owners), owners);
}

void check_same_groups(const ProcessGroup& group, const std::string& description) {
  group.check_same("ZeRO optimizers", description,
                   "give all ranks the same parameters, in the same order, and the same "
                   "optimizers");
}

std::string describe(const NamedParameters& parameters, const std::string& optimizer) {
  std::ostringstream text;
  text << optimizer << "\n";
  for (const auto& [name, tensor] : parameters)
    text << name << " " << tensor.scalar_type() << " " << tensor.sizes() << "\n";
  return text.str();
}

void check_groups(const std::vector<ZeroGroup>& groups, const ProcessGroup& group,
                  std::set<std::string> names, std::set<const c10::TensorImpl*> tensors) {
  if (!group) {
    throw ConfigError(
        "ZeRO got an empty process group; give it what init_process_group() "
        "returned, and only on ranks that are in the group");
  }
  for (const ZeroGroup& each : groups) {
    if (each.parameters.empty()) throw ConfigError("ZeRO: a group has no parameters");
    for (const auto& [name, tensor] : each.parameters) {
      if (!tensor.defined())
        throw ConfigError("ZeRO: parameter '" + name + "' is not initialized");
      if (!tensor.is_floating_point() && !tensor.is_complex())
        throw ConfigError(c10::str("ZeRO: parameter '", name, "' is of ",
                                   tensor.scalar_type(), ", which no optimizer steps"));
      if (name.empty() || !names.insert(name).second)
        throw ConfigError("ZeRO: two parameters have the name '" + name +
                          "', but each needs its own");
      if (!tensors.insert(tensor.unsafeGetTensorImpl()).second)
        throw ConfigError("ZeRO: parameter '" + name + "' is there twice");
    }
  }
}

void check_root(int to, const ProcessGroup& group) {
  if (to >= 0 && to < group.size()) return;
  throw ConfigError("ZeRO: consolidate to rank " + std::to_string(to) + ", but there are " +
                    std::to_string(group.size()) + " ranks, from 0 on");
}

}  // namespace brigade::optim
