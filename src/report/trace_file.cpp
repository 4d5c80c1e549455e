#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "brigade/report.h"

namespace brigade::report {
namespace {

using Json = nlohmann::ordered_json;

// Orders a rank's rows: the loop, then each station and its wire.
int row_of(const Span& span) {
  if (span.station < 0) return 0;
  return 1 + 2 * span.station + (span.kind == Span::Kind::collective ? 1 : 0);
}

std::string row_name(int row) {
  if (row == 0) return "training loop";
  const std::string station = "station " + std::to_string((row - 1) / 2);
  return row % 2 == 1 ? station : station + ", on the wire";
}

std::string bucket_name(const Span& span) {
  std::string name = "bucket " + std::to_string(span.bucket);
  if (span.lane >= 0) name += "." + std::to_string(span.lane);
  return name;
}

Json arguments(const Series& series, const Span& span) {
  Json args = {{"hook", series.hook}, {"step", span.step}};
  if (!series.link.empty()) args["link"] = series.link;
  if (span.bucket >= 0) args["bucket"] = bucket_name(span);
  if (span.kind == Span::Kind::collective) args["bytes"] = span.bytes;
  return args;
}

void name_row(Json& events, int rank, int row) {
  const Json where = {{"ph", "M"}, {"pid", rank}, {"tid", row}};
  const auto say = [&](const char* what, Json args) {
    Json event = where;
    event["name"] = what;
    event["args"] = std::move(args);
    events.push_back(std::move(event));
  };
  if (row == 0) {
    say("process_name", {{"name", "rank " + std::to_string(rank)}});
    say("process_sort_index", {{"sort_index", rank}});
  }
  say("thread_name", {{"name", row_name(row)}});
  say("thread_sort_index", {{"sort_index", row}});
}

// Collectives of one station overlap, which only asynchronous events may.
void add_collective(Json& events, const Series& series, const Span& span, double origin,
                    int id) {
  Json event = {{"name", row_name(row_of(span))},
                {"cat", "collective"},
                {"ph", "b"},
                {"id2", {{"local", id}}},
                {"pid", span.rank},
                {"tid", row_of(span)},
                {"ts", span.begin_us - origin},
                {"args", arguments(series, span)}};
  events.push_back(event);
  event["ph"] = "e";
  event["ts"] = span.end_us - origin;
  event.erase("args");
  events.push_back(std::move(event));
}

void add_span(Json& events, const Series& series, const Span& span, double origin) {
  const bool loop = span.station < 0;
  events.push_back({{"name", loop ? std::string(name_of(span.kind)) : bucket_name(span)},
                    {"cat", name_of(span.kind)},
                    {"ph", "X"},
                    {"pid", span.rank},
                    {"tid", row_of(span)},
                    {"ts", span.begin_us - origin},
                    {"dur", span.end_us - span.begin_us},
                    {"args", arguments(series, span)}});
}

}  // namespace

std::string trace_text(const RunRecord& record) {
  double origin = std::numeric_limits<double>::max();
  std::set<std::pair<int, int>> rows;
  for (const Series& series : record.series) {
    for (const Span& span : series.spans) {
      origin = std::min(origin, span.begin_us);
      rows.insert({span.rank, 0});
      rows.insert({span.rank, row_of(span)});
    }
  }
  if (rows.empty()) return "";
  Json events = Json::array();
  for (const auto& [rank, row] : rows) name_row(events, rank, row);
  int collectives = 0;
  for (const Series& series : record.series) {
    for (const Span& span : series.spans) {
      if (span.kind == Span::Kind::collective) {
        add_collective(events, series, span, origin, ++collectives);
      } else {
        add_span(events, series, span, origin);
      }
    }
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump() + "\n";
}

void write_trace(const RunRecord& record, const std::string& path) {
  base::write_whole(path, trace_text(record));
}

}  // namespace brigade::report
