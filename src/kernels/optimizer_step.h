// An optimizer's step over a parameter, in one pass over memory, in float32. Zero elements
// are fine; arrays need only a float's alignment. Every instruction set gives the same
// bits: nothing is fused or reordered.
#pragma once
#include <cstddef>

#include "kernels/isa.h"

namespace brigade::kernels {

// The parameter, its gradient, and at most three arrays of state, null if the options need
// none. All have `size` elements.
// REQUIRES: none overlaps another.
struct StepArrays {
  float* param = nullptr;
  const float* grad = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  float* third = nullptr;
  std::size_t size = 0;
};

// All use g = sign * grad + weight_decay * param. A weight_decay of 0 leaves out the
// parameter, also if it is not finite. `rest` is 1 minus the rate before it; the caller
// computes it in double, because in float it would lose most of its digits.
struct SgdStep {  // first: momentum
  float lr, momentum, damping, weight_decay, sign;
  bool nesterov;
  bool fresh;  // the momentum becomes g
};
struct AdamStep {  // first: mean; second: mean of squares; third: its maximum, or null
  float step_size, beta1, rest1, beta2, rest2, root_correction, eps, weight_decay, sign;
  float shrink;  // multiplies the parameter first; 1: decay is in weight_decay
};
struct AdagradStep {  // first: sum of squares
  float step_size, eps, weight_decay, sign;
};
struct RmspropStep {  // first: mean of squares; second, third: mean, momentum, or null
  float lr, alpha, rest, eps, weight_decay, momentum, sign;
};
struct AdadeltaStep {  // first: mean of squares; second: mean of squared changes
  float lr, rho, rest, eps, weight_decay, sign;
};
struct AdamaxStep {  // first: mean; second: largest magnitude
  float step_size, beta1, rest1, beta2, eps, weight_decay, sign;
};
struct RpropStep {  // first: the previous gradient; second: step sizes
  float eta_minus, eta_plus, least, most, sign;
};

// REQUIRES: isa_runs(isa).
void step(const SgdStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const AdamStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const AdagradStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const RmspropStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const AdadeltaStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const AdamaxStep&, const StepArrays&, Isa isa = isa_best()) noexcept;
void step(const RpropStep&, const StepArrays&, Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
