#include "engine/gradient_drop.h"

#include <torch/csrc/autograd/graph_task.h>

#include "torch_port/reducer.h"

namespace brigade::engine {

void GradientDrop::set_parameters(std::vector<at::Tensor> parameters) {
  std::lock_guard lock(mutex_);
  parameters_.swap(parameters);
}

void GradientDrop::at_end_of_backward() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == -1) return;
  {
    std::lock_guard lock(mutex_);
    if (parameters_.empty() || std::exchange(pass_, pass) == pass) return;
  }
  torch_port::when_reducer_is_done([weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    std::vector<at::Tensor> parameters;
    {
      std::lock_guard lock(self->mutex_);
      parameters = self->parameters_;
    }
    // A gradient may have a Python object, which ends with the GIL: not under the mutex.
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  });
}

}  // namespace brigade::engine
