// What a DiLoCo points at.
#pragma once
#include <deque>

#include "brigade/local_sgd/diloco.h"
#include "local_sgd/hook_exchange.h"

namespace brigade::optim {

// A parameter, and what the outer optimizer has of it.
struct Outer {
  std::string name;
  at::Tensor local;
  at::Tensor global;
  at::Tensor velocity;  // undefined without momentum

  void step(const at::Tensor& d, const DiLoCoOptions& options);
  void bring_home(double mixing);
};

// Of the global parameter.
at::ScalarType outer_dtype(const at::Tensor& parameter);

// An exchange that was started, to be used after step `due`.
struct Pending {
  size_t fragment;
  int64_t due;
  Means means;
};

struct DiLoCo::State {
  State(DiLoCoOptions options, InnerStep inner, ProcessGroup group)
      : options(std::move(options)),
        inner(std::move(inner)),
        exchange(std::move(group), this->options.hook, "diloco") {}

  // Whether the exchange of a fragment begins after the present step.
  bool starts(size_t fragment) const;
  void start(size_t fragment, int64_t due);
  void use_due(int64_t now, double mixing);
  void use(Pending& next, double mixing);

  const DiLoCoOptions options;
  const InnerStep inner;
  HookExchange exchange;
  std::vector<Outer> outer;
  std::vector<std::vector<size_t>> fragments;  // indices into `outer`
  std::deque<Pending> pending;                 // in the order of `due`
  int64_t steps = 0;
  int64_t rejected = 0;
};

}  // namespace brigade::optim
