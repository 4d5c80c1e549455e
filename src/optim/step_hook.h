// The hook behind hook_then_optimizer and apply_optimizer_in_backward.
#pragma once
#include <c10/core/Event.h>

#include <mutex>
#include <unordered_map>

#include "brigade/compose_hooks.h"
#include "brigade/optimizer_in_backward.h"

namespace brigade::optim {

// An optimizer and its options of use.
struct Attached {
  Stepper stepper;
  StepOptions options;
  std::string describe() const;
};
// Throws ConfigError.
void check(const StepOptions& options);
// Throws ConfigError: a step in the backward pass takes real numbers only.
[[noreturn]] void refuse_complex(at::ScalarType dtype);

// Assigns an optimizer to each parameter.
struct Plan {
  std::vector<Attached> attached;
  // The index of a parameter's optimizer.
  std::unordered_map<const c10::TensorImpl*, size_t> of;
  // Whether the first optimizer steps all parameters.
  bool all = false;

  const Attached* find(const at::Tensor& parameter) const;
};

// A parameter of a bucket, and the position of its gradient in the bucket.
struct BucketItem {
  at::Tensor parameter;
  int64_t offset = 0;
  bool used = true;  // some rank used it
  const Attached* attached = nullptr;
  double scale = 1;  // the gradient must still be multiplied by it
};
// `used` of each item is about this rank only.
std::vector<BucketItem> items_of(const Bucket& bucket, const HookPass& pass);
// Sets `used` of each item to whether any rank used the parameter. If no rank did, the
// parameter has no gradient after an ordinary pass, and an optimizer skips it; an optimizer
// in the backward pass must do so too. `device` is the bucket's.
Task<void> agree_on_used(std::vector<BucketItem>& items, at::Device device, Comm& comm);
// Writes the reduced gradient into the parameter's grad(), for hooks that must do so
// because the Reducer does not.
void write_gradient(at::Tensor& parameter, const at::Tensor& reduced);
// Returns the parameter's segment of `flat`. It has the Reducer's layout: that of the
// parameter if the parameter is dense.
at::Tensor gradient_in(const at::Tensor& flat, const at::Tensor& parameter, int64_t offset);

class StepHook : public HookWrapper {
 public:
  // `owns_gradients`: only this hook writes reduced gradients into the parameters' grad(),
  // and it drops those of parameters that step.
  StepHook(std::shared_ptr<Hook> inner, std::shared_ptr<const Plan> plan,
           bool owns_gradients)
      : HookWrapper(std::move(inner)),
        plan_(std::move(plan)),
        owns_gradients_(owns_gradients) {}

  std::string name() const override;
  std::string fingerprint() const override;
  bool takes_sparse() const override { return true; }
  void begin_pass(const HookPass& pass) override;
  void check_dtype(at::ScalarType dtype) const override;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

 protected:
  // A bucket that the inner hook has finished.
  struct Reduced {
    std::vector<BucketItem> items;
    at::Tensor result;
    // The factor that the gradients must still be multiplied by; finish() does so.
    double scale = 1;
    int64_t index = 0;                     // the bucket's index
    std::optional<c10::Event> ready = {};  // on a device: the result is there
  };
  // With undivided, the result's scale need not be 1.
  enum class Result { plain, undivided };
  Task<Reduced> reduce_only(Bucket bucket, Comm& comm, Result wanted);
  // Steps its parameters.
  void finish(Reduced& reduced);
  const HookPass& pass() const { return pass_; }

 private:
  // Keeps a bucket until all of the pass are there, then clips by their norm and steps.
  // `buckets`: their number, known with the last; else 0.
  void hold(Reduced reduced, int64_t buckets);
  void scale_by_norm(std::vector<Reduced>& all) const;
  void scale_by_norm_on_device(std::vector<Reduced>& all) const;

  const std::shared_ptr<const Plan> plan_;
  const bool owns_gradients_;
  HookPass pass_;
  std::vector<Reduced> held_;
  int64_t buckets_ = 0;
  std::mutex stepping_;  // buckets may end at different stations
};

}  // namespace brigade::optim
