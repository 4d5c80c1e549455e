// SPDX-License-Identifier: BSD-3-Clause
// What a hook's compression costs each parameter, in a few steps of a training.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/export.h"
#include "brigade/process_group.h"
#include "brigade/report/run_record.h"

namespace brigade::report {

// Compares what a hook gave with the exact mean of the ranks' gradients: by parameter, the
// norm of the difference over the norm of the mean. A sampled step costs a copy of the
// gradients and an exact mean of them; steps in between cost nothing.
class BRIGADE_API LayerError {
 public:
  struct Sample {
    std::int64_t step = 0;
    // By the index of ddp.parameters(): the relative error, and the norm of the mean. NaN
    // where gradients are sparse.
    std::vector<double> errors = {}, norms = {};
  };

  // `ddp` must outlive it.
  LayerError(ProcessGroup group, const DdpCore& ddp);
  ~LayerError();
  LayerError(const LayerError&) = delete;
  LayerError& operator=(const LayerError&) = delete;

  // Before a forward pass that is to be sampled, on all ranks.
  void begin();
  // Collective, after its backward pass, while gradients are what the hook gave. Nothing
  // without begin().
  void finish(std::int64_t step);

  const std::vector<Sample>& samples() const { return samples_; }
  // A row for each parameter, a column for each sample. No columns without samples.
  Table table() const;

 private:
  void forget();

  const ProcessGroup group_;
  const DdpCore& ddp_;
  std::vector<unsigned> hooks_;    // by parameter; empty: no step is being sampled
  std::vector<at::Tensor> local_;  // this rank's gradients
  std::vector<Sample> samples_;
};

}  // namespace brigade::report
