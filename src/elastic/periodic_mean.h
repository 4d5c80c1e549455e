// Averages ranks that train locally every so many steps, while members come and go: local
// SGD, and DiLoCo with an outer optimizer.
//
// Vocabulary, as in brigade/local_sgd.h. The *global* parameters g and the velocity v are
// equal on all ranks; a rank's own, θ, move away from them. The periodic mean before a step
// averages all θ and takes an outer step; afterwards θ = g. All members complete it or, if
// one dies meanwhile, some: these count as ahead of the others.
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

  // Whether the members average before the step after `step` finished ones.
  bool due(int64_t step) const { return step > 0 && step % options_.period == 0; }
  bool has_averaged(int64_t step) const { return met_ == step; }
  // Collective: averages. Changes nothing unless it completes.
  void meet(const ProcessGroup& group, int64_t step);
  // The state that is equal on all ranks: g, v and the step of the last mean.
  CheckpointPart part();
  std::string describe() const;

 private:
  const ElasticLocalSGD options_;
  std::vector<at::Tensor> parameters_;
  std::vector<optim::OuterParameter> outer_;  // only with an outer optimizer
  int64_t met_ = 0;
};

}  // namespace brigade::elastic
