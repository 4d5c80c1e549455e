// Norms of gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "brigade/hook_wrapper.h"

namespace brigade::optim {

// In one pass; of the values of a sparse one, which must be coalesced. Waits for a device.
double squares_in(const at::Tensor& gradient);

// What is added to a norm that something is divided by.
inline constexpr double kAgainstZero = 1e-6;
// What gradients of norm sqrt(squares) are to be multiplied with; 1: left as they are.
double clipping_factor(double squares, double max_norm);

// A wrapper that needs the norm of what comes out.
class MeasuringWrapper : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;

 protected:
  struct Measured {
    at::Tensor result;
    // Its sum of squares, equal on all ranks, if it was taken while the result was written:
    // by a MeasuringHook, and by the plain mean of a number of ranks that is a power of
    // two, because only then the same bits come out if the sum is divided.
    std::optional<double> squares;
  };
  // As reduce_inner().
  Task<Measured> reduce_inner_measured(Bucket bucket, Comm& comm) const;
};

}  // namespace brigade::optim
