// SPDX-License-Identifier: BSD-3-Clause
// Brings the parameters of ranks that train apart together again, every so many steps.
//
//   brigade::PeriodicModelAverager averager(group, {.period = 16, .warmup_steps = 100});
//   for (…) {
//     loss.backward();
//     optimizer.step();
//     averager.average_parameters(net->parameters());
//   }
//
// With gradients that are averaged among few ranks only: brigade/local_sgd/local_sgd.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/error.h"
#include "brigade/export.h"
#include "brigade/process_group.h"

namespace brigade {

// Collective. Every parameter becomes its mean over the group, on all ranks the same bits.
// Half types are averaged in float32. Gives the bytes that this rank sent. Throws
// ConfigError for a parameter that is no dense tensor of floating point.
BRIGADE_API int64_t average_parameters(const std::vector<at::Tensor>& parameters,
                                       const ProcessGroup& group);

// Counts steps and knows at which ones parameters are averaged, and over whom. All ranks
// call it with the same parameters, whether they have gradients or not.
class BRIGADE_API ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  // Collective, after each step of the optimizer. Averages, if this is a step to do so, and
  // counts it. Says whether it did.
  bool average_parameters(const std::vector<at::Tensor>& parameters);
  // Collective. Averages over all ranks now, whatever step it is, and counts nothing: at
  // the end of training, before parameters are saved or judged.
  void average_now(const std::vector<at::Tensor>& parameters);

  // Steps counted so far, from 0: what a checkpoint must keep.
  int64_t step() const { return step_; }
  // On all ranks the same, 0 or more (ConfigError).
  void set_step(int64_t step);
  int64_t warmup_steps() const { return warmup_steps_; }
  const ProcessGroup& group() const { return group_; }
  // By this rank, since it was made.
  int64_t bytes_sent() const { return bytes_sent_; }
  // Name and options, readable.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  // Collective. Throws ConfigError for a bad warm-up, and MismatchError, on every rank, if
  // the fingerprints differ.
  ModelAverager(ProcessGroup group, int64_t warmup_steps, std::string fingerprint);
  // The group to average over at this step, which is past the warm-up; empty: none.
  virtual ProcessGroup due(int64_t step) const = 0;

 private:
  const ProcessGroup group_;
  const int64_t warmup_steps_;
  const std::string fingerprint_;
  int64_t step_ = 0;
  int64_t bytes_sent_ = 0;
};

struct PeriodicModelAveragerOptions {
  // Steps from one mean to the next; 1 or more. 1 sends as much as averaging gradients
  // would, and overlaps nothing: it is warned about.
  int64_t period = 1;
  // Steps before the first mean; 0 or more. Meanwhile gradients should be averaged.
  int64_t warmup_steps = 0;
};

// The mean over all ranks at step warmup_steps (steps count from 0), and then at every
// period-th.
class BRIGADE_API PeriodicModelAverager : public ModelAverager {
 public:
  // Collective; see ModelAverager for what it throws.
  PeriodicModelAverager(ProcessGroup group, PeriodicModelAveragerOptions options);

 protected:
  ProcessGroup due(int64_t step) const override;

 private:
  const int64_t period_;
};

// At every period-th step, the mean over groups of `group_size` consecutive ranks.
struct AveragingLevel {
  int64_t period = 1;
  int group_size = 1;
};

struct HierarchicalModelAveragerOptions {
  // Periods ascend; group sizes do not descend, divide the number of ranks, and the last is
  // that number.
  std::vector<AveragingLevel> levels = {};
  // Steps before the first mean; 0 or more.
  int64_t warmup_steps = 0;
};

// At most one mean a step: that of the largest period that divides the step, counted from
// the very first, 0, as PyTorch does. So one level equals PeriodicModelAverager if its
// period divides the warm-up.
class BRIGADE_API HierarchicalModelAverager : public ModelAverager {
 public:
  // Collective; see ModelAverager for what it throws.
  HierarchicalModelAverager(ProcessGroup group, HierarchicalModelAveragerOptions options);

 protected:
  ProcessGroup due(int64_t step) const override;

 private:
  const std::vector<AveragingLevel> levels_;
  std::vector<ProcessGroup> groups_;
};

}  // namespace brigade
