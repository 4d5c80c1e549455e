// SPDX-License-Identifier: BSD-3-Clause
// What a run leaves behind to be looked at. The report, the metrics and the trace are
// written from it.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/export.h"
#include "brigade/trace.h"

namespace brigade::report {

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

}  // namespace brigade::report
