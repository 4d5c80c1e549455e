// What a DiLoCo points at. For the files of this folder only.
#pragma once
#include <deque>

#include "brigade/local_sgd.h"
#include "local_sgd/hook_averaging.h"
#include "local_sgd/outer_parameter.h"

namespace brigade::optim {

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
