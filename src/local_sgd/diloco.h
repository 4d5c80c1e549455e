// DiLoCo's state, of each parameter and of the whole. For the files of this folder only.
//
// The outer optimizer is SGD with Nesterov's momentum on differences.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <string>

#include "brigade/local_sgd.h"
#include "local_sgd/hook_averaging.h"

namespace brigade::optim {

// The dtype of the global parameter.
at::ScalarType outer_dtype(const at::Tensor& parameter);

struct OuterParameter {
  std::string name;
  at::Tensor local;
  at::Tensor global;
  at::Tensor velocity;  // undefined without momentum

  // Copies the parameter as the global one.
  static OuterParameter make(const std::string& name, const at::Tensor& parameter,
                             double momentum);
  // Takes the outer step, by the mean difference `d`.
  void step(const at::Tensor& d, double lr, double momentum);
  // Sets the rank's own parameter to the global one, mixed with its old value.
  void reset_local(double mixing = 0);
};

// Mean differences of a fragment that are under way; they are used after step `due`.
struct PendingMeans {
  size_t fragment;
  int64_t due;
  Means means;
};

struct DiLoCo::State {
  State(DiLoCoOptions options, InnerStep inner, ProcessGroup group)
      : options(std::move(options)),
        inner(std::move(inner)),
        averaging(std::move(group), this->options.hook, "diloco") {}

  // Whether the exchange of a fragment begins after the present step.
  bool starts(size_t fragment) const;
  void start(size_t fragment, int64_t due);
  void use_due(int64_t now, double mixing);
  void use(PendingMeans& next, double mixing);

  const DiLoCoOptions options;
  const InnerStep inner;
  HookAveraging averaging;
  std::vector<OuterParameter> outer;
  std::vector<std::vector<size_t>> fragments;  // indices into `outer`
  std::deque<PendingMeans> pending;            // in the order of `due`
  int64_t steps = 0;
  int64_t rejected = 0;
};

}  // namespace brigade::optim
