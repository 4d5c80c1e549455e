#include "brigade/report/training_log.h"

#include <filesystem>

#include "brigade/error.h"
#include "brigade/report/metrics.h"
#include "brigade/report/report.h"
#include "brigade/report/timeline.h"
#include "brigade/report/trace_file.h"

namespace brigade::report {
namespace {

using LogClock = std::chrono::steady_clock;

double seconds_between(LogClock::time_point begin, LogClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

struct TrainingLog::State {
  State(DdpCore& model, TrainingLogOptions chosen)
      : ddp(model), options(std::move(chosen)), timeline(ddp.group(), ddp) {
    series.hook = options.hook;
    if (ddp.group().rank() != 0) return;
    std::filesystem::create_directories(options.folder);
    metrics.emplace(options.folder + "/metrics.jsonl");
    tensorboard.emplace(options.folder + "/tensorboard");
  }

  void write(const StepPoint& point, const Scalars& more) {
    if (!metrics) return;
    metrics->add(series, point);
    Scalars scalars{{"loss", point.loss},
                    {"step_ms", point.step_ms},
                    {"bytes_sent", static_cast<double>(point.bytes_sent)},
                    {"overlap", point.overlap}};
    if (point.accuracy) scalars.emplace_back("accuracy", *point.accuracy);
    scalars.insert(scalars.end(), more.begin(), more.end());
    tensorboard->add(point.step, scalars);
  }

  DdpCore& ddp;
  const TrainingLogOptions options;
  Timeline timeline;
  Series series;
  std::optional<MetricsWriter> metrics;
  std::optional<TensorBoardWriter> tensorboard;
  LogClock::time_point begin, piece;
  double seconds = 0;
  std::int64_t steps = 0;
};

TrainingLog::TrainingLog(DdpCore& ddp, TrainingLogOptions options) {
  if (options.folder.empty())
    throw ConfigError("TrainingLogOptions::folder is empty; name the folder to write to");
  if (options.traced_steps < 0) {
    throw ConfigError("TrainingLogOptions::traced_steps is " +
                      std::to_string(options.traced_steps) + "; it must be 0 or more");
  }
  try {
    state_ = std::make_unique<State>(ddp, std::move(options));
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(error.what());
  }
}

TrainingLog::~TrainingLog() = default;

void TrainingLog::begin_step() {
  State& state = *state_;
  if (state.steps < state.options.traced_steps) state.timeline.begin_step(/*left=*/0);
  state.begin = state.piece = LogClock::now();
}

void TrainingLog::end_of(Span::Kind piece) {
  const auto now = LogClock::now();
  state_->timeline.note(piece, state_->piece, now);
  state_->piece = now;
}

void TrainingLog::step(double loss, const Extra& extra) {
  State& state = *state_;
  const double taken = seconds_between(state.begin, LogClock::now());
  state.seconds += taken;
  if (++state.steps == state.options.traced_steps) state.timeline.stop();
  const HookStats stats = state.ddp.hook_stats();
  const StepPoint point{.step = state.steps,
                        .seconds = state.seconds,
                        .step_ms = taken * 1e3,
                        .loss = loss,
                        .accuracy = extra.accuracy,
                        .bytes_sent = stats.total.bytes_sent,
                        .overlap = stats.last_step.overlap()};
  state.series.points.push_back(point);
  if (extra.accuracy) state.series.test_accuracy = *extra.accuracy;
  state.write(point, extra.scalars);
}

void TrainingLog::finish() {
  State& state = *state_;
  state.series.overlap = state.ddp.hook_stats().total.overlap();
  state.series.gradient_bytes =
      static_cast<double>(state.ddp.logging_data().parameter_bytes);
  state.series.spans = state.timeline.gather();
  if (!state.metrics) return;
  summarise(state.series);
  RunRecord record{.title = state.options.title, .setup = machine_setup()};
  record.setup.emplace_back("ranks", std::to_string(state.ddp.group().size()) + " over " +
                                         state.ddp.group().backend());
  record.series.push_back(state.series);
  if (!state.series.spans.empty())
    write_trace(record, state.options.folder + "/trace.json");
  write_report(record, state.options.folder + "/report.html");
}

}  // namespace brigade::report
