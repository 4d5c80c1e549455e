// SPDX-License-Identifier: BSD-3-Clause
// The files that a training writes for people: report.html, metrics.jsonl, TensorBoard's
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

// ---- Run records ------------------------------------------------------------------------
//
// A run record is the data of a run. The report, the metrics and the trace are written from
// it.

// A step, as rank 0 saw it.
struct StepPoint {
  std::int64_t step = 0;  // from 1
  double seconds = 0;     // of training so far, without evaluation
  double step_ms = 0;     // of this step
  double loss = 0;        // rank 0's batch, before the step
  // 0 to 1, if it was measured after this step.
  std::optional<double> accuracy = {};
  std::int64_t bytes_sent = 0;  // by this rank so far
  double overlap = 0;           // of this step, 0 to 1
};

// A rank's activity during some time of one step.
struct Span {
  enum class Kind : std::uint8_t { forward, backward, optimizer, compute, collective };
  Kind kind = Kind::compute;
  int rank = 0;
  int station = -1;       // -1: the training loop
  std::int64_t step = 0;  // as Comm::step(): from 0
  std::int64_t bucket = -1;
  int lane = -1;
  std::int64_t bytes = 0;
  // All ranks of a host have the same clock; `ready`: backward() handed the bucket over.
  double ready_us = 0, begin_us = 0, end_us = 0;
};
BRIGADE_API const char* name_of(Span::Kind kind);
// Converts the engine's events (DdpCore::take_trace) of one rank.
BRIGADE_API std::vector<Span> spans_of(std::span<const TraceEvent> events, int rank);
// Makes the span of some time in the training loop.
BRIGADE_API Span loop_span(Span::Kind kind, int rank, std::int64_t step,
                           std::chrono::steady_clock::time_point begin,
                           std::chrono::steady_clock::time_point end);

// The members of an elastic training changed.
struct GenerationMark {
  std::int64_t step = 0;  // finished steps at that moment
  int members = 0;
  std::string why = {};  // "rank 1 ended by SIGKILL"
};

// One training with one hook.
struct BRIGADE_API Series {
  std::string hook = {};   // the text given to make_hook
  std::string link = {};   // "100 Mbit/s"; empty: loopback
  bool takes_mean = true;  // false for noop: its replicas must differ
  std::vector<StepPoint> points = {};
  std::vector<Span> spans = {};  // from a few steps, of all ranks, in any order
  std::vector<std::string> fingerprints = {};    // the replicas' at the end, by rank
  std::vector<GenerationMark> generations = {};  // after the first, in order

  double test_accuracy = 0;
  double final_loss = 0;  // mean over the last steps
  double step_ms = 0;     // the median
  double bytes_per_step = 0;
  double gradient_bytes = 0;  // of one rank, before any hook
  double overlap = 0;
  bool identical() const;
  // The steps from the first point to the last; in a long training not every step is a
  // point.
  std::int64_t steps() const;
};

// Computes final_loss, step_ms and bytes_per_step from `points`.
BRIGADE_API void summarise(Series& series);
// The series with plain all-reduce over the same link; null if there is none.
BRIGADE_API const Series* baseline_of(const Series& series, std::span<const Series> all);

// A further table of the report.
struct Table {
  std::string title = {};
  std::string note = {};
  std::vector<std::string> columns = {};  // the first one is text, all others are numbers
  std::vector<std::vector<std::string>> rows = {};
};

struct RunRecord {
  std::string title = {};                 // "brigade demo"
  std::vector<std::string> verdict = {};  // sentences for the top of the report
  // Settings that are needed to repeat the run.
  std::vector<std::pair<std::string, std::string>> setup = {};
  std::string command = {};  // the line that was typed
  std::vector<Series> series = {};
  std::vector<Table> tables = {};
};

// The machine and the build: version, LibTorch, processor, cores, kernel, date.
BRIGADE_API std::vector<std::pair<std::string, std::string>> machine_setup();

// The whole record as JSON, to keep it or to send it to another process.
BRIGADE_API std::string json_text(const RunRecord& record);
// Reads the text of json_text(). Throws ConfigError for anything else.
BRIGADE_API RunRecord record_from_text(std::string_view json);

// ---- HTML reports -----------------------------------------------------------------------
//
// report.html is one self-contained file that needs no network.

BRIGADE_API std::string report_html(const RunRecord& record);

// Writes the whole file or nothing; throws Error.
BRIGADE_API void write_report(const RunRecord& record, const std::string& path);

// ---- Metrics ----------------------------------------------------------------------------
//
// metrics.jsonl has a line of JSON for each step.

// {"hook": "fp16", "link": "", "step": 1, "seconds": …, "step_ms": …, "loss": …,
//  "accuracy": …, "bytes_sent": …, "overlap": …}; accuracy only where it was measured; a
// loss that is NaN is null.
BRIGADE_API std::string metrics_line(const Series& series, const StepPoint& point);
// All lines of all series.
BRIGADE_API std::string metrics_text(const RunRecord& record);

// Writes during training; each line is there when add() returns. For one thread.
class BRIGADE_API MetricsWriter {
 public:
  // `append` keeps the present lines. Throws Error, as add() does.
  explicit MetricsWriter(std::string path, bool append = false);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter&&) noexcept;
  MetricsWriter& operator=(MetricsWriter&&) noexcept;

  void add(const Series& series, const StepPoint& point);

 private:
  class File;
  std::unique_ptr<File> file_;
};

// ---- TensorBoard ------------------------------------------------------------------------
//
// TensorBoard's event files have scalars by step.

// Names and values: {{"loss", 0.25}, {"lr", 1e-3}}.
using Scalars = std::vector<std::pair<std::string_view, double>>;

// Writes during training; each record is there when add() returns. For one thread.
class BRIGADE_API TensorBoardWriter {
 public:
  // Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID, and the folder if it is missing.
  // Throws Error, as add() does.
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

// The content of a file with loss, accuracy, step_ms, bytes_sent and overlap of a series,
// which began at `wall_time` in seconds since 1970. TensorBoard needs "tfevents" in the
// file's name.
BRIGADE_API std::string tensorboard_text(const Series& series, double wall_time);

// ---- Timelines --------------------------------------------------------------------------
//
// A timeline records the spans of all ranks in some steps, for trace.json and the report.

class BRIGADE_API Timeline {
 public:
  Timeline(const ProcessGroup& group, DdpCore& ddp) : group_(group), ddp_(ddp) {}

  // To be called before each step, with the number of steps `left`, this one included. The
  // last eight are recorded.
  void begin_step(std::int64_t left);
  // Stops recording.
  void stop();
  // Records a span of the training loop in this step.
  void note(Span::Kind kind, std::chrono::steady_clock::time_point begin,
            std::chrono::steady_clock::time_point end);
  // Collective, after the last step. Returns the spans of all ranks. Removes the model's
  // hook.
  std::vector<Span> gather();

 private:
  const ProcessGroup& group_;
  DdpCore& ddp_;
  bool recording_ = false;
  std::int64_t step_ = -1;  // as the engine counts
  std::vector<Span> loop_;
};

// ---- Trace files ------------------------------------------------------------------------
//
// trace.json is for Perfetto (ui.perfetto.dev) and chrome://tracing.

// Shows each rank as a process, with a row for the training loop, one for each station's
// thread, and one for each station's collectives. Series are in order of time. Empty if no
// series has spans.
BRIGADE_API std::string trace_text(const RunRecord& record);

// Writes the whole file or nothing; throws Error.
BRIGADE_API void write_trace(const RunRecord& record, const std::string& path);

// ---- Errors by parameter ----------------------------------------------------------------
//
// A hook's compression error for each parameter, measured in a few steps of a training.

// Compares a hook's result with the exact mean of the ranks' gradients: the norm of the
// difference over the norm of the mean, by parameter. A sampled step costs a copy of the
// gradients and an exact mean of them; other steps cost nothing.
class BRIGADE_API LayerError {
 public:
  struct Sample {
    std::int64_t step = 0;
    // In the order of ddp.parameters(): the relative error, and the norm of the mean. NaN
    // for sparse gradients.
    std::vector<double> errors = {}, norms = {};
  };

  // `ddp` must outlive it.
  LayerError(ProcessGroup group, const DdpCore& ddp);
  ~LayerError();
  LayerError(const LayerError&) = delete;
  LayerError& operator=(const LayerError&) = delete;

  // To be called on all ranks, before a forward pass that is to be sampled.
  void begin();
  // Collective, after its backward pass, while gradients are still the hook's result. Does
  // nothing without begin().
  void finish(std::int64_t step);

  const std::vector<Sample>& samples() const { return samples_; }
  // The table has a row for each parameter and a column for each sample.
  Table table() const;

 private:
  void forget();

  const ProcessGroup group_;
  const DdpCore& ddp_;
  std::vector<unsigned> hooks_;    // by parameter; empty: no step is being sampled
  std::vector<at::Tensor> local_;  // this rank's gradients
  std::vector<Sample> samples_;
};

// ---- Training logs ----------------------------------------------------------------------
//
// A training log writes all of these files from a line or two in the training loop.

struct TrainingLogOptions {
  // Made if it is missing; equal on all ranks.
  std::string folder = {};
  std::string title = "training";
  // The hook's name in the record: the text given to make_hook.
  std::string hook = "allreduce";
  // The step of the checkpoint that this run resumes; 0: a new run. metrics.jsonl keeps its
  // lines up to that step, and steps, seconds and bytes_sent count on from there.
  std::int64_t resumed_from = 0;
  // How many steps have a timeline: the first of this run or, if `last_step` is set, the
  // last of the training. Each keeps some events a bucket until finish().
  std::int64_t traced_steps = 8;
  std::int64_t last_step = 0;
};

// Rank 0 writes; the other ranks only send their spans of the traced steps. In the folder:
//
//   metrics.jsonl   a line a step, written by step()
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
// A training that resumes from a checkpoint continues the same files:
//
//   const auto saved = load_checkpoint("run", group, parts);
//   TrainingLog log(ddp->core(), {.folder = "out", .resumed_from = saved.value_or(0)});
class BRIGADE_API TrainingLog {
 public:
  struct Extra {
    std::optional<double> accuracy = {};  // 0 to 1, if it was measured after this step
    Scalars scalars = {};                 // more values for TensorBoard: {{"lr", 1e-3}}
  };

  // `ddp` must outlive it. Throws Error if the folder cannot be written, ConfigError if its
  // name is empty.
  TrainingLog(DdpCore& ddp, TrainingLogOptions options);
  ~TrainingLog();
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  // The data of the page; only rank 0's matters. A program can add data that the log does
  // not know: the link and the fingerprints of series[0], its command, tables. Points,
  // spans and sums of series[0] are there after finish().
  RunRecord& record();

  void begin_step();
  // Ends a span of this step for the timeline: forward, backward or optimizer.
  void end_of(Span::Kind piece);
  // Excludes the time since the last end_of(), or begin_step(), from the step.
  void leave_out();
  // Ends the step that begin_step() began; `loss` is that of this rank's batch.
  void step(double loss, const Extra& extra);
  void step(double loss) { step(loss, Extra{}); }
  // The same for a step that the caller has counted and timed: `seconds` and `bytes_sent`
  // are those of this run. Returns the point as it is written, with earlier runs included.
  StepPoint step(StepPoint point, const Scalars& scalars);
  // Collective, after the last step, once. Removes the model's hook, which ends its
  // threads, so that their last events are complete.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::report
