#include "report/run_record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "brigade/error.h"
#include "brigade/report.h"

namespace brigade::report {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

}  // namespace

const char* name_of(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::forward:
      return "forward";
    case Span::Kind::backward:
      return "backward";
    case Span::Kind::optimizer:
      return "optimizer";
    case Span::Kind::compute:
      return "compute";
    case Span::Kind::collective:
      return "collective";
  }
  return "";
}

std::vector<Span> spans_of(std::span<const TraceEvent> events, int rank) {
  std::vector<Span> spans;
  for (const TraceEvent& event : events) {
    const bool wire = event.kind == TraceEvent::Kind::collective;
    spans.push_back({.kind = wire ? Span::Kind::collective : Span::Kind::compute,
                     .rank = rank,
                     .station = event.station,
                     .step = event.step,
                     .bucket = event.bucket,
                     .lane = event.lane,
                     .bytes = event.bytes,
                     .ready_us = microseconds(event.ready),
                     .begin_us = microseconds(event.begin),
                     .end_us = microseconds(event.end)});
  }
  return spans;
}

Span loop_span(Span::Kind kind, int rank, std::int64_t step, Clock::time_point begin,
               Clock::time_point end) {
  return {.kind = kind,
          .rank = rank,
          .step = step,
          .begin_us = microseconds(begin),
          .end_us = microseconds(end)};
}

bool Series::identical() const {
  return std::all_of(fingerprints.begin(), fingerprints.end(),
                     [&](const std::string& one) { return one == fingerprints[0]; });
}

std::int64_t Series::steps() const {
  return points.empty() ? 0 : points.back().step - points.front().step + 1;
}

void summarise(Series& series) {
  const std::vector<StepPoint>& points = series.points;
  if (points.empty()) return;
  const auto last = std::min<std::size_t>(10, points.size());
  series.final_loss = 0;
  for (std::size_t i = points.size() - last; i < points.size(); ++i)
    series.final_loss += points[i].loss / static_cast<double>(last);
  std::vector<double> times;
  for (const StepPoint& point : points) times.push_back(point.step_ms);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  series.step_ms = *middle;
  series.bytes_per_step =
      static_cast<double>(points.back().bytes_sent) / static_cast<double>(series.steps());
}

const Series* baseline_of(const Series& series, std::span<const Series> all) {
  const auto found = std::ranges::find_if(all, [&](const Series& other) {
    return other.hook == "allreduce" && other.link == series.link;
  });
  return found == all.end() ? nullptr : &*found;
}

namespace {

using RecordJson = nlohmann::json;

// JSON has no NaN; it becomes null.
RecordJson number_or_null(double value) {
  return std::isfinite(value) ? RecordJson(value) : RecordJson(nullptr);
}
double number_or_nan(const RecordJson& json) {
  return json.is_null() ? std::nan("") : json.get<double>();
}

RecordJson to_json(const StepPoint& point) {
  RecordJson json = {{"step", point.step},
                     {"seconds", point.seconds},
                     {"step_ms", point.step_ms},
                     {"loss", number_or_null(point.loss)},
                     {"bytes_sent", point.bytes_sent},
                     {"overlap", point.overlap}};
  if (point.accuracy) json["accuracy"] = *point.accuracy;
  return json;
}

StepPoint point_from(const RecordJson& json) {
  StepPoint point{.step = json.at("step"),
                  .seconds = json.at("seconds"),
                  .step_ms = json.at("step_ms"),
                  .loss = number_or_nan(json.at("loss")),
                  .accuracy = std::nullopt,
                  .bytes_sent = json.at("bytes_sent"),
                  .overlap = json.at("overlap")};
  if (json.contains("accuracy")) point.accuracy = json["accuracy"].get<double>();
  return point;
}

RecordJson to_json(const Span& span) {
  return {static_cast<int>(span.kind),
          span.rank,
          span.station,
          span.step,
          span.bucket,
          span.lane,
          span.bytes,
          span.ready_us,
          span.begin_us,
          span.end_us};
}

Span span_from(const RecordJson& json) {
  return {.kind = static_cast<Span::Kind>(json.at(0).get<int>()),
          .rank = json.at(1),
          .station = json.at(2),
          .step = json.at(3),
          .bucket = json.at(4),
          .lane = json.at(5),
          .bytes = json.at(6),
          .ready_us = json.at(7),
          .begin_us = json.at(8),
          .end_us = json.at(9)};
}

RecordJson to_json(const GenerationMark& mark) {
  return {{"step", mark.step}, {"members", mark.members}, {"why", mark.why}};
}

template <class T, class Convert>
RecordJson list(const std::vector<T>& all, Convert convert) {
  RecordJson json = RecordJson::array();
  for (const T& one : all) json.push_back(convert(one));
  return json;
}

RecordJson to_json(const Series& series) {
  return {{"hook", series.hook},
          {"link", series.link},
          {"takes_mean", series.takes_mean},
          {"test_accuracy", number_or_null(series.test_accuracy)},
          {"final_loss", number_or_null(series.final_loss)},
          {"step_ms", series.step_ms},
          {"bytes_per_step", series.bytes_per_step},
          {"gradient_bytes", series.gradient_bytes},
          {"overlap", series.overlap},
          {"fingerprints", series.fingerprints},
          {"replicas_identical", series.identical()},
          {"generations",
           list(series.generations, [](const GenerationMark& m) { return to_json(m); })},
          {"points", list(series.points, [](const StepPoint& p) { return to_json(p); })},
          {"spans", list(series.spans, [](const Span& span) { return to_json(span); })}};
}

Series series_from(const RecordJson& json) {
  Series series{.hook = json.at("hook"),
                .link = json.at("link"),
                .takes_mean = json.at("takes_mean"),
                .points = {},
                .spans = {},
                .fingerprints = json.at("fingerprints"),
                .test_accuracy = number_or_nan(json.at("test_accuracy")),
                .final_loss = number_or_nan(json.at("final_loss")),
                .step_ms = json.at("step_ms"),
                .bytes_per_step = json.at("bytes_per_step"),
                .gradient_bytes = json.at("gradient_bytes"),
                .overlap = json.at("overlap")};
  for (const RecordJson& point : json.at("points"))
    series.points.push_back(point_from(point));
  for (const RecordJson& mark : json.value("generations", RecordJson::array()))
    series.generations.push_back({mark.at("step"), mark.at("members"), mark.at("why")});
  for (const RecordJson& span : json.at("spans")) series.spans.push_back(span_from(span));
  return series;
}

}  // namespace

nlohmann::json to_json(const RunRecord& record) {
  RecordJson tables = list(record.tables, [](const Table& table) {
    return RecordJson{{"title", table.title},
                      {"note", table.note},
                      {"columns", table.columns},
                      {"rows", table.rows}};
  });
  RecordJson setup = RecordJson::object();
  for (const auto& [name, value] : record.setup) setup[name] = value;
  return {{"title", record.title},
          {"verdict", record.verdict},
          {"setup", std::move(setup)},
          {"command", record.command},
          {"tables", tables},
          {"series", list(record.series, [](const Series& s) { return to_json(s); })}};
}

RunRecord record_from_json(const nlohmann::json& json) {
  RunRecord record{.title = json.at("title"),
                   .verdict = json.at("verdict"),
                   .setup = {},
                   .command = json.at("command"),
                   .series = {},
                   .tables = {}};
  for (const auto& [name, value] : json.at("setup").items())
    record.setup.emplace_back(name, value.get<std::string>());
  for (const RecordJson& series : json.at("series"))
    record.series.push_back(series_from(series));
  for (const RecordJson& table : json.at("tables")) {
    record.tables.push_back({.title = table.at("title"),
                             .note = table.at("note"),
                             .columns = table.at("columns"),
                             .rows = table.at("rows")});
  }
  return record;
}

std::string json_text(const RunRecord& record) { return to_json(record).dump(); }

RunRecord record_from_text(std::string_view json) {
  try {
    return record_from_json(RecordJson::parse(json));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(std::string("not the record of a run: ") + error.what());
  }
}

}  // namespace brigade::report
