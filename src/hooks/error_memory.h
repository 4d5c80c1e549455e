// Error feedback for whole buckets. It is kept by parameter, so that it survives the
// rebuilding of buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "brigade/hook.h"

namespace brigade {

// To be used by one thread: before a hook's first co_await, or between steps.
class ErrorMemory {
 public:
  // The errors of the bucket's parameters, as one float32 tensor of the buffer's length.
  // They are zero at first. What is written into the tensor is kept for the next step.
  at::Tensor of(const Bucket& bucket);
  // To be called after of(). False: they are as the last step left them, under the same
  // `division` of the values among the ranks. True: they come from elsewhere, from other
  // buckets, another division or a checkpoint.
  bool moved(const Bucket& bucket, const std::string& division);

  void save(HookState& state) const;
  void load(const HookState& state);

 private:
  bool fits(const Bucket& bucket, const at::Tensor& flat) const;
  at::Tensor assemble(const Bucket& bucket);
  void drop_left_behind();

  std::map<std::string, at::Tensor> errors_;  // views into the flat tensors below
  // By the name of the first parameter.
  std::map<std::string, at::Tensor> flat_;
  std::map<std::string, std::string> division_;
};

}  // namespace brigade
