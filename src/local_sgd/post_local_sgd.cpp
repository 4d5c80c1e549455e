#include "brigade/local_sgd/post_local_sgd.h"

#include <ATen/ATen.h>

#include <atomic>
#include <charconv>

#include "engine/average.h"
#include "engine/engine.h"
#include "engine/group_scope.h"
#include "hooks/dense.h"

namespace brigade {
namespace {

constexpr const char* kIteration = "post_local_sgd.iteration";

class Local : public PostLocalSGDHook {
 public:
  Local(PostLocalSGDOptions options, std::shared_ptr<Hook> inner)
      : options_(std::move(options)), inner_(std::move(inner)) {}

  std::string name() const override { return "post_local_sgd+" + inner_->name(); }
  std::string fingerprint() const override {
    return "post_local_sgd:start=" + std::to_string(options_.start_localSGD_iter) +
           ",allreduce=" + (options_.post_local_gradient_allreduce ? "1" : "0") + "+" +
           inner_->fingerprint();
  }
  void begin_pass(const HookPass& pass) override {
    complete_ = pass.complete;
    inner_->begin_pass(pass);
  }
  bool takes_sparse() const override { return true; }
  void check_dtype(at::ScalarType dtype) const override { inner_->check_dtype(dtype); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    const bool local = is_local(bucket);
    if (local && !options_.post_local_gradient_allreduce) co_return bucket.buffer();
    const ProcessGroup among = local ? subgroup(comm) : options_.group;
    std::optional<engine::GroupScope> scope;
    if (among) scope.emplace(comm, among);
    co_return co_await engine::reduce_by(*inner_, bucket, comm);
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
    HookState state = inner_->state();
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
    inner_->load_state(state);
    iteration_ = iteration;
  }
  void reset() override {
    inner_->reset();
    iteration_ = 0;
  }

 private:
  // In a bucket's first stretch, which buckets come through in order.
  bool is_local(const Bucket& bucket) {
    const bool local = iteration_ >= options_.start_localSGD_iter;
    if (bucket.is_last() && complete_) ++iteration_;
    return local;
  }

  // Found when it is first needed, because a hook does not know its ranks before. From a
  // duplicate with a name, because other threads may be making groups.
  ProcessGroup subgroup(Comm& comm) {
    if (options_.subgroup) return options_.subgroup;
    const engine::Engine& engine = engine::engine_of(comm);
    if (!host_ || host_of_.c10d() != engine.group().c10d()) {
      host_of_ = engine.group();
      host_ = host_of_.duplicate(engine.name() + "/hosts").new_subgroups();
    }
    return host_;
  }

  const PostLocalSGDOptions options_;
  const std::shared_ptr<Hook> inner_;
  ProcessGroup host_, host_of_;
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
