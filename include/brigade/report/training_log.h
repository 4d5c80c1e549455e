// SPDX-License-Identifier: BSD-3-Clause
// What a training loop leaves behind to be looked at, with a line or two a step.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "brigade/ddp_core.h"
#include "brigade/report/run_record.h"
#include "brigade/report/tensorboard.h"

namespace brigade::report {

struct TrainingLogOptions {
  // Made if need be; equal on all ranks.
  std::string folder = {};
  std::string title = "training";
  // What the record calls the hook: the text that make_hook was given.
  std::string hook = "allreduce";
  // The step of the checkpoint that this run goes on from; 0: it begins. metrics.jsonl
  // keeps its lines up to that step, and steps, seconds and bytes_sent count on from there.
  std::int64_t resumed_from = 0;
  // How many steps have a timeline: the first of this run or, where `last_step` says how
  // long the training is, the last. 0: none. Each costs some events a bucket, which are
  // kept until finish().
  std::int64_t traced_steps = 8;
  std::int64_t last_step = 0;
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
//
// A training that is taken up from a checkpoint goes on in the same files:
//
//   const auto saved = load_checkpoint("run", group, parts);
//   TrainingLog log(ddp->core(), {.folder = "out", .resumed_from = saved.value_or(0)});
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

  // What the page is made of; rank 0's counts. A program adds to it what the log cannot
  // know: the link and the fingerprints of series[0], its command, tables. Points, spans
  // and sums of series[0] are there after finish().
  RunRecord& record();

  void begin_step();
  // A piece of this step for the timeline, up to now: forward, backward or optimizer.
  void end_of(Span::Kind piece);
  // What has happened since the last end_of(), or begin_step(), is no part of the step.
  void leave_out();
  // The step that begin_step() began is over; `loss` is that of this rank's batch.
  void step(double loss, const Extra& extra);
  void step(double loss) { step(loss, Extra{}); }
  // The same, of a step that the caller has counted and timed: `seconds` and `bytes_sent`
  // are those of this run. Gives the point with those of the runs before, as it is written.
  StepPoint step(StepPoint point, const Scalars& scalars);
  // Collective, after the last step, once. Takes the model's hook away, which ends its
  // threads, so that their last events are there.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::report
