// SPDX-License-Identifier: BSD-3-Clause
// What a training leaves behind to be looked at: report.html, metrics.jsonl, TensorBoard's
// event files, traces for chrome://tracing.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade::report {

// ---- run record -------------------------------------------------------------------------
//
// What a run leaves behind to be looked at. The report, the metrics and the trace are
// written from it.

// A step, as rank 0 saw it.
struct StepPoint {
  std::int64_t step = 0;  // from 1
  double seconds = 0;     // of training so far, without evaluation
  double step_ms = 0;     // of this step
  double loss = 0;        // of rank 0's batch, before the step
  // 0 to 1, where it was measured after this step.
  std::optional<double> accuracy = {};
  std::int64_t bytes_sent = 0;  // by this rank so far
  double overlap = 0;           // of this step, 0 to 1
};

// What one rank did in a piece of one step.
struct Span {
  enum class Kind : std::uint8_t { forward, backward, optimizer, compute, collective };
  Kind kind = Kind::compute;
  int rank = 0;
  int station = -1;       // -1: the training loop
  std::int64_t step = 0;  // as Comm::step(): from 0
  std::int64_t bucket = -1;
  int lane = -1;
  std::int64_t bytes = 0;
  // One clock for all ranks of a host; `ready`: when backward() handed the bucket over.
  double ready_us = 0, begin_us = 0, end_us = 0;
};
BRIGADE_API const char* name_of(Span::Kind kind);
// The engine's events (DdpCore::take_trace) of one rank.
BRIGADE_API std::vector<Span> spans_of(std::span<const TraceEvent> events, int rank);
// A piece of the training loop.
BRIGADE_API Span loop_span(Span::Kind kind, int rank, std::int64_t step,
                           std::chrono::steady_clock::time_point begin,
                           std::chrono::steady_clock::time_point end);

// The members of an elastic training changed.
struct GenerationMark {
  std::int64_t step = 0;  // finished steps at that moment
  int members = 0;
  std::string why = {};  // "rank 1 ended by SIGKILL"
};

// One training under one hook.
struct BRIGADE_API Series {
  std::string hook = {};   // what make_hook was given
  std::string link = {};   // "100 Mbit/s"; empty: loopback
  bool takes_mean = true;  // false for noop: its replicas drift apart, as they must
  std::vector<StepPoint> points = {};
  std::vector<Span> spans = {};                // of a few steps, of all ranks, in any order
  std::vector<std::string> fingerprints = {};  // of the replicas at the end, by rank
  std::vector<GenerationMark> generations = {};  // after the first, in order

  double test_accuracy = 0;
  double final_loss = 0;  // mean over the last steps
  double step_ms = 0;     // the median
  double bytes_per_step = 0;
  double gradient_bytes = 0;  // of one rank, before any hook
  double overlap = 0;
  bool identical() const;
  // From the first point to the last; of a long training not every step is a point.
  std::int64_t steps() const;
};

// Fills what can be counted from `points`: final_loss, step_ms, bytes_per_step.
BRIGADE_API void summarise(Series& series);
// The series under plain all-reduce over the same link; null: there is none.
BRIGADE_API const Series* baseline_of(const Series& series, std::span<const Series> all);

// Any further table.
struct Table {
  std::string title = {};
  std::string note = {};
  std::vector<std::string> columns = {};  // the first one is text, all others are numbers
  std::vector<std::vector<std::string>> rows = {};
};

struct RunRecord {
  std::string title = {};                 // "brigade demo"
  std::vector<std::string> verdict = {};  // sentences for the top of the report
  // What to know to repeat it.
  std::vector<std::pair<std::string, std::string>> setup = {};
  std::string command = {};  // the line that was typed
  std::vector<Series> series = {};
  std::vector<Table> tables = {};
};

// The machine and the build: version, LibTorch, processor, cores, kernel, date.
BRIGADE_API std::vector<std::pair<std::string, std::string>> machine_setup();

// All of it as JSON, spans too: to keep a record, or to hand it to another process.
BRIGADE_API std::string json_text(const RunRecord& record);
// Of what json_text() gave. Throws ConfigError for anything else.
BRIGADE_API RunRecord record_from_text(std::string_view json);

// ---- report -----------------------------------------------------------------------------
//
// report.html: one file that holds everything it shows, and needs no network.

BRIGADE_API std::string report_html(const RunRecord& record);

// Whole or not at all; throws Error.
BRIGADE_API void write_report(const RunRecord& record, const std::string& path);

// ---- metrics ----------------------------------------------------------------------------
//
// metrics.jsonl: a line of JSON a step.

// {"hook": "fp16", "link": "", "step": 1, "seconds": …, "step_ms": …, "loss": …,
//  "accuracy": …, "bytes_sent": …, "overlap": …}; accuracy only where it was measured; a
// loss that is no number is null.
BRIGADE_API std::string metrics_line(const Series& series, const StepPoint& point);
// All lines of all series.
BRIGADE_API std::string metrics_text(const RunRecord& record);

// Writes while training goes on; each line is there when add() returns. For one thread.
class BRIGADE_API MetricsWriter {
 public:
  // `append`: goes on behind what is there. Throws Error, as add() does.
  explicit MetricsWriter(std::string path, bool append = false);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter&&) noexcept;
  MetricsWriter& operator=(MetricsWriter&&) noexcept;

  void add(const Series& series, const StepPoint& point);

 private:
  class File;
  std::unique_ptr<File> file_;
};

// ---- tensorboard ------------------------------------------------------------------------
//
// TensorBoard's event files: scalars against steps.

// A name and a value each: {{"loss", 0.25}, {"lr", 1e-3}}.
using Scalars = std::vector<std::pair<std::string_view, double>>;

// Writes while training goes on; each record is there when add() returns. For one thread.
class BRIGADE_API TensorBoardWriter {
 public:
  // Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID, and the folder if need be. Throws
  // Error, as add() does.
  explicit TensorBoardWriter(const std::string& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(TensorBoardWriter&&) noexcept;
  TensorBoardWriter& operator=(TensorBoardWriter&&) noexcept;

  void add(std::int64_t step, const Scalars& scalars);
  const std::string& path() const;

 private:
  class File;
  std::unique_ptr<File> file_;
};

// A whole file: loss, accuracy, step_ms, bytes_sent and overlap of a series; `wall_time` is
// when it began, in seconds since 1970. TensorBoard finds files whose name has "tfevents"
// in it.
BRIGADE_API std::string tensorboard_text(const Series& series, double wall_time);

// ---- timeline ---------------------------------------------------------------------------
//
// What all ranks did in some steps of a training, for trace.json and the report.

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

// ---- trace file -------------------------------------------------------------------------
//
// trace.json, for Perfetto (ui.perfetto.dev) and chrome://tracing.

// A process a rank; in it a row for the training loop, one for each station's thread, and
// one for each station's collectives. Series follow each other as they did in time. Empty
// where no series has spans.
BRIGADE_API std::string trace_text(const RunRecord& record);

// Whole or not at all; throws Error.
BRIGADE_API void write_trace(const RunRecord& record, const std::string& path);

// ---- layer error ------------------------------------------------------------------------
//
// What a hook's compression costs each parameter, in a few steps of a training.

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

// ---- training log -----------------------------------------------------------------------
//
// What a training loop leaves behind to be looked at, with a line or two a step.

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
