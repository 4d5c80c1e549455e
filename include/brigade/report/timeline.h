// SPDX-License-Identifier: BSD-3-Clause
// What all ranks did in some steps of a training, for trace.json and the report.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/process_group.h"
#include "brigade/report/run_record.h"

namespace brigade::report {

class BRIGADE_API Timeline {
 public:
  Timeline(const ProcessGroup& group, DdpCore& ddp) : group_(group), ddp_(ddp) {}

  // Before a step with `left` more to come, itself included: the last eight are recorded.
  void begin_step(std::int64_t left);
  // No more is recorded from now on.
  void stop();
  // A piece of this step of the training loop.
  void note(Span::Kind kind, std::chrono::steady_clock::time_point begin,
            std::chrono::steady_clock::time_point end);
  // Collective, after the last step: the spans of all ranks. Takes the model's hook away.
  std::vector<Span> gather();

 private:
  const ProcessGroup& group_;
  DdpCore& ddp_;
  bool recording_ = false;
  std::int64_t step_ = -1;  // as the engine counts
  std::vector<Span> loop_;
};

}  // namespace brigade::report
