// Implements hook_with_zero_step and hook_with_zero_step_interleaved.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "brigade/compose_hooks.h"
#include "brigade/zero.h"
#include "exchange/flat_buffer.h"
#include "optim/step_hook.h"
#include "zero/zero_groups.h"

namespace brigade::optim {
namespace {

using Zero = std::shared_ptr<ZeroRedundancyOptimizer>;

// The parameters in each bucket.
using BucketLayout = std::vector<std::vector<at::Tensor>>;

bool same(const BucketLayout& a, const BucketLayout& b) {
  const auto same_tensors = [](const auto& x, const auto& y) {
    return std::equal(
        x.begin(), x.end(), y.begin(), y.end(),
        [](const at::Tensor& p, const at::Tensor& q) { return p.is_same(q); });
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_tensors);
}

// Plans a step of every parameter; `zero` skips those that this rank does not own.
std::shared_ptr<const Plan> plan_of(const Zero& zero) {
  auto plan = std::make_shared<Plan>();
  Stepper stepper;
  stepper.description = "zero step of " + zero->fingerprint();
  stepper.step = [zero](const at::Tensor& parameter, const at::Tensor& gradient) {
    zero->step_own(parameter, gradient);
  };
  plan->attached.push_back({std::move(stepper), {}});
  plan->all = true;
  return plan;
}

// Gives whole buckets, the largest first, to the rank with the least load. Parameters in no
// bucket keep their owners.
std::vector<int> owners_by_bucket(const ZeroRedundancyOptimizer& zero,
                                  const BucketLayout& buckets) {
  std::vector<int64_t> sizes;
  for (const auto& bucket : buckets) {
    sizes.push_back(0);
    for (const at::Tensor& parameter : bucket)
      if (zero.owner(parameter) >= 0) sizes.back() += parameter.numel();
  }
  std::vector<size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int64_t> loads(static_cast<size_t>(zero.group().size()));
  std::unordered_map<const c10::TensorImpl*, int> owner_of;
  for (const size_t index : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += sizes[index];
    for (const at::Tensor& parameter : buckets[index])
      owner_of[parameter.unsafeGetTensorImpl()] = static_cast<int>(least - loads.begin());
  }
  std::vector<int> owners;
  for (const at::Tensor& parameter : zero.parameters()) {
    const auto found = owner_of.find(parameter.unsafeGetTensorImpl());
    owners.push_back(found == owner_of.end() ? zero.owner(parameter) : found->second);
  }
  return owners;
}

// Observes the buckets of a model that a DdpCore does not drive.
class PassingBuckets {
 public:
  // Called before a pass's first bucket, when none is under way. Returns true if layout()
  // has changed. The layout is that of two passes in a row: the Reducer's first buckets
  // last for one pass only, and may be a single one.
  bool begin_pass() {
    const bool changed = same(last_, before_) && !same(last_, layout_);
    if (changed) layout_ = last_;
    before_ = std::exchange(last_, {});
    return changed;
  }
  // Called for each bucket, in order.
  void see(const Bucket& bucket) { last_.push_back(bucket.parameters()); }
  const BucketLayout& layout() const { return layout_; }

 private:
  BucketLayout last_, before_, layout_;
};

class ZeroStepHook : public StepHook {
 public:
  // Without a model, the arriving buckets show the layout of its parameters.
  using Model = std::optional<DdpCore::ModelHandle>;
  ZeroStepHook(std::shared_ptr<Hook> inner, Model model, Zero zero, bool shard_buckets)
      : StepHook(std::move(inner), plan_of(zero), /*owns_gradients=*/false),
        zero_(std::move(zero)),
        model_(std::move(model)),
        shard_buckets_(shard_buckets) {}

  std::string name() const override { return inner().name() + " with zero step"; }
  std::string fingerprint() const override {
    return StepHook::fingerprint() + (shard_buckets_ ? ", buckets sharded" : "");
  }
  // Runs on the thread of the backward pass, which may wait for the other ranks; a
  // station's thread must not.
  void begin_pass(const HookPass& pass) override {
    StepHook::begin_pass(pass);
    if (shard_buckets_) return;
    if (model_) {
      follow_buckets();
    } else if (pass.complete && passing_.begin_pass()) {
      zero_->assign(owners_by_bucket(*zero_, passing_.layout()));
    }
  }

 protected:
  // REQUIRES: called in a bucket's first stage, which buckets reach in order.
  void see(const Bucket& bucket) {
    if (!shard_buckets_ && !model_ && pass().complete) passing_.see(bucket);
  }
  void check_size(const Comm& comm) const {
    if (comm.size() == zero_->group().size()) return;
    throw ConfigError("the hook works on " + std::to_string(comm.size()) +
                      " ranks, but its ZeroRedundancyOptimizer on " +
                      std::to_string(zero_->group().size()) +
                      "; make it with the same group");
  }
  // The owners step their parameters, and all ranks receive the results.
  Task<void> finish_and_share(std::vector<Reduced> buckets, Comm& comm) {
    std::vector<at::Tensor> owned;
    std::vector<int> owners;
    std::unordered_map<const c10::TensorImpl*, Reduced> by_parameter;
    for (const Reduced& bucket : buckets) {
      for (const BucketItem& item : bucket.items) {
        Reduced alone{{item}, bucket.result, bucket.scale};
        if (zero_->owner(item.parameter) < 0) {
          finish(alone);
          continue;
        }
        owned.push_back(item.parameter);
        owners.push_back(zero_->owner(item.parameter));
        by_parameter[item.parameter.unsafeGetTensorImpl()] = std::move(alone);
      }
    }
    const auto step = [&](const FlatBuffer& buffer) {
      for (const at::Tensor& parameter : buffer.parameters)
        finish(by_parameter.at(parameter.unsafeGetTensorImpl()));
    };
    co_await share_flat_buffers(make_flat_buffers(owned, owners, INT64_MAX, kInPlaceBytes),
                                comm, step);
  }

  const Zero zero_;

 private:
  // All ranks call it with the same buckets. The first buckets last for one iteration only,
  // and may be a single one; until they are rebuilt nothing moves.
  void follow_buckets() {
    BucketLayout layout = model_->final_buckets();
    if (layout.empty() || same(layout, layout_)) return;
    layout_ = std::move(layout);
    zero_->assign(owners_by_bucket(*zero_, layout_));
  }

  const Model model_;
  const bool shard_buckets_;
  BucketLayout layout_;
  PassingBuckets passing_;
};

// ---- as each bucket arrives -------------------------------------------------------------

class Interleaved : public ZeroStepHook {
 public:
  using ZeroStepHook::ZeroStepHook;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    check_size(comm);
    see(bucket);
    std::vector<Reduced> reduced;
    const bool complete = pass().complete;
    const Result wanted = complete ? Result::undivided : Result::plain;
    reduced.push_back(co_await reduce_only(bucket, comm, wanted));
    const at::Tensor result = reduced.front().result;
    if (complete) co_await finish_and_share(std::move(reduced), comm);
    co_return result;
  }
};

// ---- after the last bucket --------------------------------------------------------------

class AfterLast : public ZeroStepHook {
 public:
  using ZeroStepHook::ZeroStepHook;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    check_size(comm);
    see(bucket);
    // The first stage of every bucket comes in order, so all have come when the last has.
    if (bucket.index() == 0) buckets_ = std::make_shared<Pass>();
    const std::shared_ptr<Pass> all = buckets_;
    if (!bucket.is_last()) all->missing.add();
    // The result must be divided: a bucket may end here, before it is finished.
    Reduced reduced = co_await reduce_only(bucket, comm, Result::plain);
    const at::Tensor result = reduced.result;
    all->add(bucket.index(), std::move(reduced));
    if (!bucket.is_last() || !pass().complete) co_return result;
    co_await all->missing.wait(comm);
    std::vector<Reduced> buckets;
    for (auto& [index, each] : all->reduced) buckets.push_back(std::move(each));
    co_await finish_and_share(std::move(buckets), comm);
    co_return result;
  }

 private:
  // The buckets of one backward pass.
  struct Pass {
    void add(int64_t index, Reduced bucket) {
      {
        std::lock_guard lock(mutex);
        reduced[index] = std::move(bucket);
      }
      missing.count_down();
    }
    Latch missing{1};  // buckets not yet reduced; one for the last bucket
    std::mutex mutex;
    std::map<int64_t, Reduced> reduced;  // by index
  };
  std::shared_ptr<Pass> buckets_;
};

// ---- making them ------------------------------------------------------------------------

void check(const std::string& who, const std::shared_ptr<Hook>& hook, DdpCore& core,
           const Zero& zero, bool shard_buckets) {
  if (!hook)
    throw ConfigError(who +
                      ": the hook is null; make_hook(\"allreduce\") is the plain one");
  if (!zero) throw ConfigError(who + ": the ZeroRedundancyOptimizer is null");
  if (zero->group().size() != core.group().size()) {
    throw ConfigError(who + ": the model is on " + std::to_string(core.group().size()) +
                      " ranks, the ZeroRedundancyOptimizer on " +
                      std::to_string(zero->group().size()));
  }
  if (core.options().mixed_precision && !shard_buckets) {
    throw ConfigError(
        who +
        ": with mixed_precision set shard_buckets: state would move while the "
        "parameters are low-precision copies");
  }
  for (const at::Tensor& parameter : zero->parameters()) {
    if (core.trains(parameter)) continue;
    throw ConfigError(c10::str(
        who, ": the ZeroRedundancyOptimizer has a parameter of shape ", parameter.sizes(),
        " that DistributedDataParallel does not train, and so would "
        "never step it"));
  }
}

}  // namespace

std::shared_ptr<Hook> hook_with_zero_step(std::shared_ptr<Hook> hook, DdpCore& core,
                                          std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                          bool shard_buckets) {
  check("hook_with_zero_step", hook, core, zero, shard_buckets);
  if (core.options().skip_all_reduce_unused_params) {
    throw ConfigError(
        "hook_with_zero_step steps after the last bucket, which may not come with "
        "skip_all_reduce_unused_params; use hook_with_zero_step_interleaved");
  }
  return std::make_shared<AfterLast>(std::move(hook), core.handle(), std::move(zero),
                                     shard_buckets);
}

std::shared_ptr<Hook> hook_with_zero_step_interleaved(
    std::shared_ptr<Hook> hook, DdpCore& core,
    std::shared_ptr<ZeroRedundancyOptimizer> zero, bool shard_buckets) {
  check("hook_with_zero_step_interleaved", hook, core, zero, shard_buckets);
  return std::make_shared<Interleaved>(std::move(hook), core.handle(), std::move(zero),
                                       shard_buckets);
}

std::shared_ptr<Hook> make_zero_step(std::shared_ptr<Hook> hook, Zero zero,
                                     bool interleaved, bool shard_buckets) {
  const ZeroStepHook::Model none;
  if (interleaved) {
    return std::make_shared<Interleaved>(std::move(hook), none, std::move(zero),
                                         shard_buckets);
  }
  return std::make_shared<AfterLast>(std::move(hook), none, std::move(zero), shard_buckets);
}

}  // namespace brigade::optim
