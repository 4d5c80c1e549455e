// What bench times: the reduction of a model's gradients by a hook, and nothing else.
//
// The model's gradients are given, all there at once, so backward() is one pass over memory
// that adds them to the buckets, and their reduction. What the pass alone takes is what the
// noop hook shows.
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

// Parameters of `bytes` in all, float32: matrices of 1024 x 1024, and what remains as a
// smaller square and a vector.
Shapes shapes_of_size(int64_t bytes);

struct ReductionTimes {
  // A step each: its backward pass, on this rank's clock, and what this process computed in
  // it, all threads together.
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;
  HookTraffic traffic;  // of the last step, on this rank; without a hook it is not counted
  std::string shape;    // HookStats' own
  int64_t buckets = 0;
};

struct ReductionCheck {
  // Of one step with a fresh hook, over all gradients: |result - exact mean| as a share of
  // the size of one rank's gradients (Frobenius norm).
  double error = 0;
  // The same for gradients of rank one, which low-rank hooks must reproduce; 0 for others.
  double low_rank_error = 0;
  bool identical = false;  // all ranks hold the same bits
};

// A model under DistributedDataParallel. Everything is collective. `spec` is a hook's, or
// kNoHook.
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

// q from 0 to 1: the value that a share q of the others do not exceed.
double quantile(std::vector<double> values, double q);

}  // namespace brigade::tool
