// Drops gradients that nobody needs after the backward pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

namespace brigade::engine {

// For optimizers in the backward pass, which have used the gradients by then. Thread-safe.
class GradientDrop : public std::enable_shared_from_this<GradientDrop> {
 public:
  // Replaces what was given before.
  void set_parameters(std::vector<at::Tensor> parameters);
  // When the Reducer is done with the present backward pass, the parameters' gradients are
  // dropped. Does nothing outside of a pass: join() reduces without one. REQUIRES: called
  // by a comm hook.
  void at_end_of_backward();

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> parameters_;
  // The backward pass whose end drops them. A pass that fails never comes to its end, so
  // this is no flag.
  int pass_ = -1;
};

}  // namespace brigade::engine
