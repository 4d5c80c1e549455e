// Low-precision copies that replace the data of a model's tensors for a while.
#pragma once
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "brigade/ddp_core.h"

namespace brigade {

// Lowering gives a tensor other data. Every handle to the tensor sees it: the module's, an
// optimizer's and the graph's. The tensor keeps the gradient accumulator that was made for
// its own dtype. So autograd casts gradients up before it adds them, gradients and buckets
// always have the model's dtype, and the Reducer's hooks stay.
//
// A shared_ptr must hold this object: callbacks in autograd's threads hold it weakly.
class LowPrecision : public std::enable_shared_from_this<LowPrecision> {
 public:
  explicit LowPrecision(const MixedPrecision& dtypes) : dtypes_(dtypes) {}

  // Makes the backward passes of these parameters end with restore(). REQUIRES: nothing is
  // lowered.
  void watch(const std::vector<at::Tensor>& trained);
  // REQUIRES: nothing is lowered.
  void lower(const DdpModel& model);
  // Gives these parameters, or all, their own data back if they lack it. Then throws Error
  // if a parameter with a gradient was changed meanwhile, as far as its version shows.
  void restore(const std::vector<at::Tensor>& parameters);
  void restore();
  // Does the same for all, after a forward pass without a backward pass. It also compares
  // the values, because LibTorch's optimizers change them without a new version.
  void abandon();
  bool lowered() const;
  // Replaces each floating-point tensor by one in param_dtype.
  void cast(const std::vector<at::Tensor*>& tensors) const;

 private:
  struct Lowered {
    std::string name;
    at::Tensor tensor;
    at::Tensor full;  // the tensor's own data
    bool is_buffer = false;
    uint32_t version = 0;
  };
  void put_back(const Lowered& lowered) const;
  void keep_accumulator(const at::Tensor& tensor) const;
  void restore_at_end_of_backward();
  void restore_all(bool look_at_values);

  const MixedPrecision dtypes_;
  std::unordered_map<const c10::TensorImpl*, std::shared_ptr<torch::autograd::Node>>
      accumulators_;
  // Autograd has a thread for each device.
  mutable std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Lowered> lowered_;
  std::atomic<bool> queued_ = false;
};

// Throws ConfigError.
void check(const MixedPrecision& dtypes);

// Returns a hook that reduces in `dtype` as `inner` does (null: by all-reduce of the sum).
std::shared_ptr<Hook> reduce_in(at::ScalarType dtype, std::shared_ptr<Hook> inner);

}  // namespace brigade
