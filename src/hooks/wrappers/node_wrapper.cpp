#include <ATen/ATen.h>

#include "brigade/compose_hooks.h"
#include "brigade/hooks.h"

namespace brigade {
namespace {

// Keys of the state: how ranks sat on hosts, and that the host's first rank has it.
constexpr const char* kShape = "own.shape";
constexpr const char* kWithFirst = "own.with_first";

std::string shape_of(const HostLayout& layout) {
  if (!layout.shares_hosts()) return "flat";
  std::string text = layout.text() + ", the first:";
  for (const auto& there : layout.ranks) text += " " + std::to_string(there[0]);
  return text;
}

// All ranks of a host await its last collective at the same index, however many the inner
// hook awaits on the first rank: after the host's first and at most 12 of the hook.
constexpr int kLastCollective = 13;

class NodeHook : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  std::string name() const override { return "node+" + inner().name(); }
  std::string fingerprint() const override { return "node+" + inner().fingerprint(); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    const HostLayout& layout = comm.layout();
    settle(layout);
    if (!layout.shares_hosts() || bucket.buffer().is_sparse())
      co_return co_await reduce_inner(bucket, comm);
    at::Tensor buffer = bucket.buffer();
    const ProcessGroup host_ranks = comm.host_group(), firsts = comm.peer_group();
    // Makes the mean over hosts that over ranks. It comes first, so that no sum overflows.
    buffer.mul_(static_cast<double>(layout.hosts()) / comm.size());
    if (host_ranks.size() > 1) {
      GroupScope host(comm, host_ranks);
      co_await comm.all_reduce(buffer);
    } else {
      co_await comm.skip();
    }
    if (layout.place == 0) {
      GroupScope between(comm, firsts);
      at::Tensor result = co_await reduce_inner(bucket, comm);
      if (!result.is_same(buffer)) buffer.copy_(result);
    }
    if (comm.collectives_so_far() > kLastCollective)
      throw Error(name() + ": the hook awaits more than 12 collectives in a row");
    co_await comm.skip(kLastCollective - comm.collectives_so_far());
    if (host_ranks.size() > 1) {
      GroupScope host(comm, host_ranks);
      co_await comm.broadcast(buffer, 0);
    } else {
      co_await comm.skip();
    }
    co_return buffer;
  }

  // Only the first ranks of the hosts have state.
  HookState state() const override {
    if (!first_) return {.tensors = {}, .values = {{kShape, shape_}, {kWithFirst, "1"}}};
    HookState state = HookWrapper::state();
    if (!shape_.empty()) state.values[kShape] = shape_;
    return state;
  }
  void load_state(const HookState& state) override {
    HookState inner_state = state;
    inner_state.values.erase(kShape);
    first_ = inner_state.values.erase(kWithFirst) == 0;
    shape_.clear();
    if (const auto shape = state.values.find(kShape); shape != state.values.end())
      shape_ = shape->second;
    if (first_) {
      HookWrapper::load_state(inner_state);
    } else {
      HookWrapper::reset();
    }
  }
  void reset() override {
    HookWrapper::reset();
    first_ = true;
    shape_.clear();
  }

 private:
  void settle(const HostLayout& layout) {
    const std::string shape = shape_of(layout);
    if (!shape_.empty() && shape_ != shape) {
      throw Error(name() + ": its state is of '" + shape_ + "', but the ranks are '" +
                  shape + "'; load combine_states() of all ranks' states, or reset()");
    }
    shape_ = shape;
    first_ = layout.place == 0 || !layout.shares_hosts();
  }

  // The shape of the last step or of the loaded state; empty: there is neither.
  std::string shape_;
  bool first_ = true;
};

}  // namespace

std::shared_ptr<Hook> node_wrapper(std::shared_ptr<Hook> inner) {
  return std::make_shared<NodeHook>(std::move(inner));
}

}  // namespace brigade
