// Times the reduction of a model's gradients by a hook, and nothing else.
//
// The model's gradients are given and complete at once. So backward() is one pass over
// memory that adds them to the buckets, and their reduction. The noop hook shows what the
// pass alone takes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade::tool {

using Shapes = std::vector<std::vector<int64_t>>;

// float32 parameters of `bytes` in all: matrices of 1024 x 1024, then a smaller square and
// a vector for the rest.
Shapes shapes_of_size(int64_t bytes);

struct ReductionTimes {
  // For each step: the seconds of its backward pass on this rank's clock, and the CPU time
  // that all threads of this process spent in it.
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;
  HookTraffic traffic;  // last step, this rank; not counted without a hook
  std::string shape;    // from HookStats
  int64_t buckets = 0;
};

struct ReductionCheck {
  // The error of one step with a fresh hook, over all gradients:
  // result - exact mean
  //  relative to one rank's gradients (Frobenius norms).
  double error = 0;
  // The same for gradients of rank one, which low-rank hooks must reproduce; 0 for others.
  double low_rank_error = 0;
  bool identical = false;  // all ranks hold the same bits
};

// A model under DistributedDataParallel. Everything is collective. `spec` names a hook, or
// is kNoHook.
class Measurement {
 public:
  Measurement(ProcessGroup group, Shapes shapes, at::Device device);
  ~Measurement();

  // Two steps to warm up, for `auto` as many as it needs to settle, then as many as fit
  // into `seconds`, `least` to `most`.
  ReductionTimes time(const std::string& spec, double seconds, int least, int most);
  ReductionCheck check(const std::string& spec);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The value that a share q (0 to 1) of the values do not exceed.
double quantile(std::vector<double> values, double q);

}  // namespace brigade::tool
