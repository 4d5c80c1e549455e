#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "brigade/error.h"
#include "brigade/report.h"
#include "report/history.h"

namespace brigade::report {
namespace {

using LogClock = std::chrono::steady_clock;

double seconds_between(LogClock::time_point begin, LogClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Parses a line that metrics_line() wrote; none for any other.
std::optional<StepPoint> read_point(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json.contains("loss"))
    return std::nullopt;
  StepPoint point{.step = json["step"],
                  .seconds = json.value("seconds", 0.0),
                  .step_ms = json.value("step_ms", 0.0),
                  .loss = json["loss"].is_number() ? json["loss"].get<double>() : NAN,
                  .bytes_sent = json.value("bytes_sent", std::int64_t{0}),
                  .overlap = json.value("overlap", 0.0)};
  if (json.contains("accuracy")) point.accuracy = json["accuracy"].get<double>();
  return point;
}

// Returns an empty text if there is no such file.
std::string text_of_file(const std::string& path) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return "";
  try {
    return base::InputFile(path).text();
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
}

}  // namespace

struct TrainingLog::State {
  State(DdpCore& model, TrainingLogOptions chosen)
      : ddp(model),
        options(std::move(chosen)),
        timeline(ddp.group(), ddp),
        steps(options.resumed_from) {
    record.title = options.title;
    record.setup = machine_setup();
    record.setup.emplace_back(
        "ranks", std::to_string(ddp.group().size()) + " over " + ddp.group().backend());
    record.series.push_back({.hook = options.hook});
    if (ddp.group().rank() != 0) return;
    std::filesystem::create_directories(options.folder);
    take_up();
    tensorboard.emplace(options.folder + "/tensorboard");
  }

  Series& series() { return record.series.at(0); }

  // Keeps the lines of steps up to the checkpoint. Those of later steps are removed,
  // because they will be trained again.
  void take_up() {
    const std::string path = options.folder + "/metrics.jsonl";
    std::string kept;
    if (options.resumed_from > 0) {
      std::istringstream lines(text_of_file(path));
      for (std::string line; std::getline(lines, line);) {
        const auto point = read_point(line);
        if (!point || point->step > options.resumed_from) continue;
        history.add(*point);
        kept += line + "\n";
      }
    }
    if (!history.empty()) {
      bytes_before = history.newest().bytes_sent;
      seconds_before = history.newest().seconds;
    }
    base::write_whole(path, kept);
    metrics.emplace(path, /*append=*/true);
  }

  void write(const StepPoint& point, const Scalars& more) {
    if (!metrics) return;
    metrics->add(series(), point);
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
  RunRecord record;
  History history;
  std::optional<MetricsWriter> metrics;
  std::optional<TensorBoardWriter> tensorboard;
  LogClock::time_point begin, piece;
  double seconds = 0;
  std::int64_t steps;
  // The time of the runs before this one.
  double seconds_before = 0;
  std::int64_t bytes_before = 0;
};

TrainingLog::TrainingLog(DdpCore& ddp, TrainingLogOptions options) {
  if (options.folder.empty())
    throw ConfigError("TrainingLogOptions::folder is empty; name the folder to write to");
  const auto not_negative = [](const char* field, std::int64_t value) {
    if (value >= 0) return;
    throw ConfigError(std::string("TrainingLogOptions::") + field + " is " +
                      std::to_string(value) + "; it must be 0 or more");
  };
  not_negative("traced_steps", options.traced_steps);
  not_negative("last_step", options.last_step);
  not_negative("resumed_from", options.resumed_from);
  try {
    state_ = std::make_unique<State>(ddp, std::move(options));
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(error.what());
  }
}

TrainingLog::~TrainingLog() = default;

RunRecord& TrainingLog::record() { return state_->record; }

void TrainingLog::begin_step() {
  State& state = *state_;
  const TrainingLogOptions& options = state.options;
  const bool traced = options.last_step > 0
                          ? state.steps >= options.last_step - options.traced_steps
                          : state.steps < options.resumed_from + options.traced_steps;
  constexpr auto kMany = std::numeric_limits<std::int64_t>::max();
  state.timeline.begin_step(/*left=*/traced ? 0 : kMany);
  state.begin = state.piece = LogClock::now();
}

void TrainingLog::end_of(Span::Kind piece) {
  const auto now = LogClock::now();
  state_->timeline.note(piece, state_->piece, now);
  state_->piece = now;
}

void TrainingLog::leave_out() {
  const auto now = LogClock::now();
  state_->begin += now - state_->piece;
  state_->piece = now;
}

void TrainingLog::step(double loss, const Extra& extra) {
  State& state = *state_;
  const double taken = seconds_between(state.begin, LogClock::now());
  state.seconds += taken;
  const HookStats stats = state.ddp.hook_stats();
  state.series().overlap = stats.total.overlap();
  step({.step = state.steps + 1,
        .seconds = state.seconds,
        .step_ms = taken * 1e3,
        .loss = loss,
        .accuracy = extra.accuracy,
        .bytes_sent = stats.total.bytes_sent,
        .overlap = stats.last_step.overlap()},
       extra.scalars);
}

StepPoint TrainingLog::step(StepPoint point, const Scalars& scalars) {
  State& state = *state_;
  const TrainingLogOptions& options = state.options;
  state.steps = point.step;
  if (options.last_step == 0 && point.step >= options.resumed_from + options.traced_steps)
    state.timeline.stop();
  point.seconds += state.seconds_before;
  point.bytes_sent += state.bytes_before;
  if (point.accuracy) state.series().test_accuracy = *point.accuracy;
  state.history.add(point);
  state.write(point, scalars);
  return point;
}

void TrainingLog::finish() {
  State& state = *state_;
  Series& series = state.series();
  series.gradient_bytes = static_cast<double>(state.ddp.logging_data().parameter_bytes);
  series.spans = state.timeline.gather();
  series.points = state.history.points();
  summarise(series);
  if (!state.metrics) return;
  if (!series.spans.empty())
    write_trace(state.record, state.options.folder + "/trace.json");
  write_report(state.record, state.options.folder + "/report.html");
}

}  // namespace brigade::report
