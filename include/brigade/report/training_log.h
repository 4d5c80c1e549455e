// SPDX-License-Identifier: BSD-3-Clause
// What a training loop leaves behind to be looked at, with a line or two a step.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "brigade/ddp_core.h"
#include "brigade/report/tensorboard.h"

namespace brigade::report {

struct TrainingLogOptions {
  // Made if need be; equal on all ranks.
  std::string folder = {};
  std::string title = "training";
  // What the record calls the hook: the text that make_hook was given.
  std::string hook = "allreduce";
  // How many steps from the first on have a timeline. 0: none. Each costs some events a
  // bucket, which are kept until finish().
  std::int64_t traced_steps = 8;
};

// Rank 0 writes; the other ranks only bring what they did in the traced steps. In the
// folder:
//
//   metrics.jsonl   a line a step, there when step() returns
//   tensorboard/    the same as events
//   trace.json      the traced steps of all ranks, written by finish()
//   report.html     one page with all of it, written by finish()
//
//   brigade::report::TrainingLog log(ddp->core(), {.folder = "out", .hook = "int8"});
//   for (…) {
//     log.begin_step();
//     …forward, backward, optimizer…
//     log.step(loss.item<double>(), {.accuracy = …});
//   }
//   log.finish();
class BRIGADE_API TrainingLog {
 public:
  struct Extra {
    std::optional<double> accuracy = {};  // 0 to 1, where it was measured after this step
    Scalars scalars = {};                 // more values for TensorBoard: {{"lr", 1e-3}}
  };

  // `ddp` must outlive it. Throws Error where the folder cannot be written, ConfigError for
  // an empty one.
  TrainingLog(DdpCore& ddp, TrainingLogOptions options);
  ~TrainingLog();
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  void begin_step();
  // A piece of this step for the timeline, up to now: forward, backward or optimizer.
  void end_of(Span::Kind piece);
  // The step that begin_step() began is over; `loss` is that of this rank's batch.
  void step(double loss, const Extra& extra);
  void step(double loss) { step(loss, Extra{}); }
  // Collective, after the last step, once. Takes the model's hook away, which ends its
  // threads, so that their last events are there.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::report
