#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <atomic>
#include <charconv>

#include "brigade/compose_hooks.h"
#include "brigade/ddp_core.h"
#include "brigade/local_sgd.h"
#include "hooks/factories.h"

namespace brigade {
namespace {

constexpr const char* kIteration = "post_local_sgd.iteration";

class Local : public PostLocalSGDHook {
 public:
  Local(PostLocalSGDOptions options, std::shared_ptr<Hook> inner)
      : PostLocalSGDHook(std::move(inner)), options_(std::move(options)) {}

  std::string name() const override { return "post_local_sgd+" + inner().name(); }
  std::string fingerprint() const override {
    return "post_local_sgd:start=" + std::to_string(options_.start_localSGD_iter) +
           ",allreduce=" + (options_.post_local_gradient_allreduce ? "1" : "0") + "+" +
           inner().fingerprint();
  }
  void begin_pass(const HookPass& pass) override {
    complete_ = pass.complete;
    PostLocalSGDHook::begin_pass(pass);
  }
  bool takes_sparse() const override { return true; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    const bool local = is_local(bucket);
    if (local && !options_.post_local_gradient_allreduce) co_return bucket.buffer();
    const ProcessGroup among = local ? subgroup(comm) : options_.group;
    std::optional<GroupScope> scope;
    if (among) scope.emplace(comm, among);
    co_return co_await reduce_inner(bucket, comm);
  }

  int64_t iteration() const override { return iteration_; }
  void set_iteration(int64_t iteration) override {
    if (iteration < 0) {
      throw ConfigError("post_local_sgd: iteration is " + std::to_string(iteration) +
                        ", but must be 0 or more");
    }
    iteration_ = iteration;
  }

  HookState state() const override {
    HookState state = inner().state();
    state.values[kIteration] = std::to_string(iteration_);
    return state;
  }
  void load_state(const HookState& state) override {
    const auto found = state.values.find(kIteration);
    const std::string text = found == state.values.end() ? "" : found->second;
    int64_t iteration = -1;
    std::from_chars(text.data(), text.data() + text.size(), iteration);
    if (iteration < 0) {
      throw ConfigError(std::string("post_local_sgd: the state's '") + kIteration +
                        "' is '" + text + "', but must be 0 or more: is it this hook's?");
    }
    inner().load_state(state);
    iteration_ = iteration;
  }
  void reset() override {
    inner().reset();
    iteration_ = 0;
  }

 private:
  // REQUIRES: called in a bucket's first stage, which buckets reach in order.
  bool is_local(const Bucket& bucket) {
    const bool local = iteration_ >= options_.start_localSGD_iter;
    if (bucket.is_last() && complete_) ++iteration_;
    return local;
  }

  ProcessGroup subgroup(const Comm& comm) const {
    return options_.subgroup ? options_.subgroup : comm.host_group();
  }

  const PostLocalSGDOptions options_;
  bool complete_ = true;
  std::atomic<int64_t> iteration_ = 0;
};

}  // namespace

std::shared_ptr<PostLocalSGDHook> make_post_local_sgd(PostLocalSGDOptions options,
                                                      std::shared_ptr<Hook> inner) {
  if (options.start_localSGD_iter < 0) {
    throw ConfigError("post_local_sgd: start_localSGD_iter is " +
                      std::to_string(options.start_localSGD_iter) +
                      ", but must be 0 or more: 0 is local from the first step on");
  }
  if (!inner) inner = make_allreduce();
  return std::make_shared<Local>(std::move(options), std::move(inner));
}

}  // namespace brigade

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
