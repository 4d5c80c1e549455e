// SPDX-License-Identifier: BSD-3-Clause
// Learning rates by step. A schedule is a function of the step's number and keeps nothing,
// so a resumed run needs no more than the step that its checkpoint has.
//
//   const auto rate = optim::warm_up(500, optim::cosine(0.1, 20'000));
//   for (int64_t step = first; step < last; ++step) {
//     rate.apply(optimizer, step);
//     …
//   }
#pragma once
#include <cstdint>
#include <functional>

#include "brigade/export.h"

namespace torch::optim {
class Optimizer;
}

namespace brigade::optim {

class BRIGADE_API Schedule {
 public:
  // Of your own: the rate of each step, from 0 on.
  explicit Schedule(std::function<double(int64_t step)> rate);
  // Throws ConfigError for a step below 0.
  double operator()(int64_t step) const;

  // Gives the optimizer the rate of `step`: in all groups of one of torch::optim, by set_lr
  // in one of ours, ZeRO's too.
  void apply(torch::optim::Optimizer& optimizer, int64_t step) const;
  template <class T>
  requires requires(T& optimizer) { optimizer.set_lr(0.1); }
  void apply(T& optimizer, int64_t step) const { optimizer.set_lr((*this)(step)); }

 private:
  std::function<double(int64_t step)> rate_;
};

// Rates must be finite and 0 or more, numbers of steps 1 or more: ConfigError.

BRIGADE_API Schedule constant(double lr);
// Rises evenly for `steps` steps, to the first rate of `then`, which begins after them. The
// first step has 1 / (steps + 1) of it.
BRIGADE_API Schedule warm_up(int64_t steps, Schedule then);
// Falls from lr to final_lr in `steps` steps, along half a cosine, and stays there.
BRIGADE_API Schedule cosine(double lr, int64_t steps, double final_lr = 0);
// Is multiplied by gamma after every `every` steps.
BRIGADE_API Schedule step_decay(double lr, int64_t every, double gamma = 0.1);

struct OneCycleOptions {
  double rising = 0.3;         // the part of the steps in which the rate rises; 0 to 1
  double start_divisor = 25;   // the first rate is max_lr / start_divisor; > 0
  double final_divisor = 1e4;  // the last one is the first / final_divisor; > 0
};
// Rises to max_lr and falls to next to nothing, both along half a cosine, as torch's
// OneCycleLR.
BRIGADE_API Schedule one_cycle(double max_lr, int64_t steps,
                               const OneCycleOptions& options = {});

}  // namespace brigade::optim
