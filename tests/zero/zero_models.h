// A small model, and the ways to train it with ZeRO.
#pragma once
#include <torch/torch.h>

#include "brigade/hooks.h"
#include "brigade/zero.h"
#include "optim/numbers.h"

namespace brigade::testing {

using optim::OptimizerState;
using optim::ZeroRedundancyOptimizer;

// Has layers of several sizes, one that may be left out, a parameter in another layout, and
// one with fewer elements than there are ranks.
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    torch::NoGradGuard no_grad;
    mixed.set_data(mixed.t().contiguous().t());  // dense, but not in row order
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_second = true) {
    auto y = torch::tanh(torch::matmul(first(x), mixed));
    if (use_second) y = y + torch::tanh(second(y));
    return last(torch::tanh(third(y))) * scale;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 16));
  torch::nn::Linear third = register_module("third", torch::nn::Linear(16, 17));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(17, 3));
  torch::Tensor mixed = register_parameter("mixed", torch::randn({16, 16}) / 4);
  torch::Tensor scale = register_parameter("scale", torch::ones({1}));
};
TORCH_MODULE(Tower);
using Ddp = DistributedDataParallel<TowerImpl>;

inline Tower make_tower() {
  torch::manual_seed(1);
  return Tower();
}

// In MiB: gives five buckets or more.
constexpr double kManyBuckets = 0.00005;

// plain: the optimizer on every rank, after backward(). The others' names say it.
enum class How { plain, step, step_views, after_last, interleaved, reduce_scatter };
inline const std::vector<How> kZeroSteps{How::step, How::step_views, How::after_last,
                                         How::interleaved};

struct Setting {
  std::string hook = "allreduce";
  std::string optimizer = "adam:lr=0.01,weight_decay=0.1";
  DdpOptions ddp = {.bucket_cap_mb = kManyBuckets};
  std::function<bool(int step)> use_second = [](int) { return true; };
  int micro_batches = 1;
  bool shard_buckets = false;
  int steps = 8;  // buckets are rebuilt after the first, lr changes in the middle
};

// Adds in the order of the ranks, as reduce-scatter does.
inline Task<at::Tensor> mean_in_order(Bucket bucket, Comm& comm) {
  if (comm.size() == 1) co_return bucket.buffer();
  const at::Tensor mine = bucket.buffer();
  at::Tensor all = at::empty({comm.size() * mine.numel()}, mine.options());
  co_await comm.all_gather(mine, all);
  at::Tensor sum = all.narrow(0, 0, mine.numel()).clone();
  for (int rank = 1; rank < comm.size(); ++rank)
    sum.add_(all.narrow(0, rank * mine.numel(), mine.numel()));
  co_return sum.div_(comm.size());
}

inline void train_step(Ddp& ddp, const Setting& setting, int step) {
  ddp->zero_grad();
  for (int micro = 0; micro < setting.micro_batches; ++micro) {
    const int number = step * setting.micro_batches + micro;
    std::optional<NoSync> guard;
    if (micro + 1 < setting.micro_batches) guard.emplace(ddp->no_sync());
    auto x = share(batch(number, 12), ddp->group()).to(torch::kFloat);
    auto y = share(target(number, 12), ddp->group()).to(torch::kFloat);
    const auto output = ddp(x, setting.use_second(step)).to(torch::kFloat);
    torch::mse_loss(output, y).backward();
  }
}

// A model in training, one step at a time.
class Training {
 public:
  Training(const ProcessGroup& group, Setting setting, How how)
      : setting_(std::move(setting)),
        how_(how),
        net_(make_tower()),
        ddp_(net_, group, setting_.ddp) {
    const auto inner = setting_.hook == "in order" ? make_hook("in order", mean_in_order)
                                                   : make_hook(setting_.hook);
    if (how == How::plain) {
      local_ = optim::make_optimizer(setting_.optimizer);
      ddp_->set_hook(inner);
    } else if (how == How::reduce_scatter) {
      hook_ = optim::apply_zero_in_backward(ddp_, setting_.optimizer);
    } else {
      zero_ = std::make_shared<ZeroRedundancyOptimizer>(
          ddp_, setting_.optimizer,
          optim::ZeroOptions{.parameters_as_bucket_view = how == How::step_views});
      ddp_->set_hook(hooked(inner));
    }
  }

  void step() {
    train_step(ddp_, setting_, done_++);
    if (how_ == How::step || how_ == How::step_views) zero_->step();
    if (how_ != How::plain) return;
    for (const auto& parameter : net_->parameters())
      if (parameter.grad().defined()) local_->step_param(parameter, parameter.grad());
  }
  void train(int steps) {
    for (int step = 0; step < steps; ++step) this->step();
  }
  // Pretends that so many steps were taken.
  void go_on_at(int steps) { done_ = steps; }
  void set_lr(double lr) {
    if (local_)
      local_->set_lr(lr);
    else
      sharded().set_lr(lr);
  }

  optim::ShardedOptimizer& sharded() {
    if (hook_) return *hook_;
    return *zero_;
  }
  optim::Optimizer& local() { return *local_; }
  optim::NamedParameters named() {
    optim::NamedParameters named;
    for (const auto& item : net_->named_parameters())
      named.emplace_back(item.key(), item.value());
    return named;
  }
  Tower& net() { return net_; }
  Ddp& ddp() { return ddp_; }
  const std::shared_ptr<ZeroRedundancyOptimizer>& zero() { return zero_; }

 private:
  std::shared_ptr<Hook> hooked(std::shared_ptr<Hook> inner) {
    if (how_ == How::after_last)
      return optim::hook_with_zero_step(inner, ddp_, zero_, setting_.shard_buckets);
    if (how_ == How::interleaved)
      return optim::hook_with_zero_step_interleaved(inner, ddp_, zero_,
                                                    setting_.shard_buckets);
    return inner;
  }

  const Setting setting_;
  const How how_;
  Tower net_;
  Ddp ddp_;
  std::shared_ptr<optim::Optimizer> local_;
  std::shared_ptr<ZeroRedundancyOptimizer> zero_;
  std::shared_ptr<optim::ZeroHook> hook_;
  int done_ = 0;
};

inline std::string describe(How how, const Setting& setting) {
  const char* names[] = {"plain",      "step",        "step with views",
                         "after last", "interleaved", "reduce-scatter"};
  return std::string(names[static_cast<int>(how)]) + ", " + setting.hook + ", " +
         setting.optimizer + (setting.shard_buckets ? ", sharded" : "");
}

// Two trainings side by side have the same bits, and so do the replicas.
inline void expect_same_training(const ProcessGroup& group, const Setting& setting, How how,
                                 size_t least_buckets = 1) {
  Setting reference = setting;
  if (how == How::reduce_scatter) reference.hook = "in order";
  Training plain(group, reference, How::plain), zero(group, setting, how);
  for (int step = 0; step < setting.steps; ++step) {
    if (step == setting.steps / 2) {
      plain.set_lr(0.003);
      zero.set_lr(0.003);
    }
    plain.step();
    zero.step();
    const auto expected = plain.net()->named_parameters();
    for (const auto& item : zero.net()->named_parameters()) {
      ASSERT_TRUE(torch::equal(item.value(), expected[item.key()]))
          << describe(how, setting) << ": " << item.key() << ", step " << step
          << ", off by " << distance(item.value(), expected[item.key()]);
    }
  }
  EXPECT_FALSE(torch::equal(zero.net()->mixed, make_tower()->mixed));
  EXPECT_GE(zero.ddp()->logging_data().bucket_bytes.size(), least_buckets);
  for (const auto& parameter : zero.net()->parameters()) {
    torch::Tensor root = parameter.detach().clone(torch::MemoryFormat::Contiguous);
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, parameter)) << describe(how, setting);
  }
}

}  // namespace brigade::testing
