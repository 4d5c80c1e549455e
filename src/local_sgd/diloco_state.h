// What a DiLoCo points at. For the files of this folder only.
#pragma once
#include <deque>

#include "brigade/local_sgd/diloco.h"
#include "local_sgd/hook_averaging.h"

namespace brigade::optim {

// A parameter, and what the outer optimizer keeps for it.
struct OuterParameter {
  std::string name;
  at::Tensor local;
  at::Tensor global;
  at::Tensor velocity;  // undefined without momentum

  // The outer step, by the mean difference `d`.
  void step(const at::Tensor& d, const DiLoCoOptions& options);
  // The rank's own parameter becomes the global one, mixed with what it was.
  void reset_local(double mixing);
};

// The dtype of the global parameter.
at::ScalarType outer_dtype(const at::Tensor& parameter);

// Mean differences of a fragment that are under way, to be used after step `due`.
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
