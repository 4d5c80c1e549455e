// Error feedback for whole buckets, kept by parameter: survives the rebuilding of buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "brigade/hook.h"

namespace brigade {

// Used from one thread: a hook's first stretch, or between steps.
class ErrorMemory {
 public:
  // The errors of the bucket's parameters as one float32 tensor of the buffer's length,
  // which stays the memory of these parameters; zero where there was none.
  at::Tensor of(const Bucket& bucket);

  void save(HookState& state) const;
  void load(const HookState& state);

 private:
  bool fits(const Bucket& bucket, const at::Tensor& flat) const;
  at::Tensor assemble(const Bucket& bucket);
  void drop_left_behind();

  std::map<std::string, at::Tensor> errors_;  // views into the flat tensors below
  std::map<std::string, at::Tensor> flat_;    // by the name of the first parameter
};

}  // namespace brigade
