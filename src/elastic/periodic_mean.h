// Ranks that train apart and meet every so many steps, while members come and go: local
// SGD, and DiLoCo with an outer optimizer.
//
// Vocabulary, as in brigade/local_sgd.h. The *global* parameters g and the velocity
// v are equal on all ranks; a rank's own, θ, move away from them. A meeting before a step
// is a mean of all θ and an outer step; afterwards θ = g. It is done on all members or,
// when one dies meanwhile, on some: these count as ahead of the others.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "brigade/checkpoint.h"
#include "brigade/elastic.h"
#include "local_sgd/diloco.h"

namespace brigade::elastic {

// Not thread-safe.
class PeriodicMean {
 public:
  // Throws ConfigError for options out of range.
  PeriodicMean(const std::vector<at::Tensor>& parameters, const ElasticLocalSGD& options);

  // Whether the members meet before the step after `step` finished ones.
  bool due(int64_t step) const { return step > 0 && step % options_.period == 0; }
  bool has_averaged(int64_t step) const { return met_ == step; }
  // Collective. Changes nothing unless it came through whole.
  void meet(const ProcessGroup& group, int64_t step);
  // What is equal on all ranks: g, v and the step of the last meeting.
  CheckpointPart part();
  std::string describe() const;

 private:
  const ElasticLocalSGD options_;
  std::vector<at::Tensor> parameters_;
  std::vector<optim::OuterParameter> outer_;  // with an outer optimizer only
  int64_t met_ = 0;
};

}  // namespace brigade::elastic
