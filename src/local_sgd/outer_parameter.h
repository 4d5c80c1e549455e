// A parameter, and what an outer optimizer keeps for it: SGD with Nesterov's momentum on
// differences, as DiLoCo's.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace brigade::optim {

// The dtype of the global parameter.
at::ScalarType outer_dtype(const at::Tensor& parameter);

struct OuterParameter {
  std::string name;
  at::Tensor local;
  at::Tensor global;
  at::Tensor velocity;  // undefined without momentum

  // The global parameter is a copy.
  static OuterParameter make(const std::string& name, const at::Tensor& parameter,
                             double momentum);
  // The outer step, by the mean difference `d`.
  void step(const at::Tensor& d, double lr, double momentum);
  // The rank's own parameter becomes the global one, mixed with what it was.
  void reset_local(double mixing = 0);
};

}  // namespace brigade::optim
