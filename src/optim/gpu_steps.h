// Runs many steps on a GPU in one of ATen's fused kernels.
#pragma once
#include <ATen/ATen.h>

#include <map>

#include "brigade/optim.h"

namespace brigade::optim {

// The lists that the kernels take, with the state of each parameter.
struct GpuSteps {
  std::vector<at::Tensor> parameters, gradients, first, second, third, counts;

  void add(const SlotStep& step) {
    parameters.push_back(step.parameter);
    gradients.push_back(step.gradient);
  }
};

// Runs steps of Adam or AdamW.
template <class Options, class Kernel>
void adam_on_gpu(const Options& o, Kernel kernel, const std::vector<SlotStep>& steps) {
  GpuSteps lists;
  std::map<int64_t, at::Tensor> counts;  // nearly always one
  for (const SlotStep& step : steps) {
    lists.add(step);
    lists.first.push_back(step.slots->tensor(0));
    lists.second.push_back(step.slots->tensor(1));
    if (o.amsgrad) lists.third.push_back(step.slots->tensor(2));
    at::Tensor& count = counts[step.slots->step];
    if (!count.defined()) {
      count = at::full({}, static_cast<double>(step.slots->step),
                       step.parameter.options().dtype(at::kFloat).requires_grad(false));
    }
    lists.counts.push_back(count);
  }
  kernel(lists.parameters, lists.gradients, lists.first, lists.second, lists.third,
         lists.counts, o.lr, o.betas.first, o.betas.second, o.weight_decay, o.eps,
         o.amsgrad, o.maximize, std::nullopt, std::nullopt);
}

}  // namespace brigade::optim
