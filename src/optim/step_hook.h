// The hook behind hook_then_optimizer and apply_optimizer_in_backward.
#pragma once
#include <mutex>
#include <unordered_map>

#include "brigade/hook.h"
#include "brigade/optim/in_backward.h"

namespace brigade::optim {

// An optimizer and how it is used.
struct Attached {
  Stepper stepper;
  StepOptions options;
  std::string describe() const;
};
// Throws ConfigError.
void check(const StepOptions& options);

// Who steps which parameter.
struct Plan {
  std::vector<Attached> attached;
  // The index of a parameter's optimizer.
  std::unordered_map<const c10::TensorImpl*, size_t> of;
  // The first optimizer steps all parameters.
  bool all = false;

  const Attached* find(const at::Tensor& parameter) const;
};

class StepHook : public Hook {
 public:
  // `owns_gradients`: nobody writes reduced gradients into the parameters' grad() but this
  // hook, and those of parameters that step are dropped.
  StepHook(std::shared_ptr<Hook> inner, std::shared_ptr<const Plan> plan,
           bool owns_gradients)
      : inner_(std::move(inner)), plan_(std::move(plan)), owns_gradients_(owns_gradients) {}

  std::string name() const override;
  std::string fingerprint() const override;
  HookState state() const override { return inner_->state(); }
  void load_state(const HookState& state) override { inner_->load_state(state); }
  void reset() override { inner_->reset(); }
  void check_dtype(at::ScalarType dtype) const override { inner_->check_dtype(dtype); }
  bool takes_sparse() const override { return true; }
  void begin_pass(const HookPass& pass) override;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

 private:
  // A parameter of the bucket, and where in it its gradient lies.
  struct Item {
    at::Tensor parameter;
    int64_t offset = 0;
    bool used = true;  // by a rank
    const Attached* attached = nullptr;
  };
  std::vector<Item> items_of(const Bucket& bucket) const;
  void finish(std::vector<Item>& items, const at::Tensor& result);

  const std::shared_ptr<Hook> inner_;
  const std::shared_ptr<const Plan> plan_;
  const bool owns_gradients_;
  HookPass pass_;
  std::mutex stepping_;  // buckets may end at different stations
};

}  // namespace brigade::optim
