#include <algorithm>

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

}  // namespace brigade::report
