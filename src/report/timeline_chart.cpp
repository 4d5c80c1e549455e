// One step of each hook: each station's work on each bucket, over time.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "base/number_text.h"
#include "report/charts.h"
#include "report/svg.h"

namespace brigade::report {
namespace {

constexpr double kTimelineWidth = 400, kTimelineLeft = 58, kTimelineRight = 10;
constexpr double kRow = 15, kGap = 4, kTimelineTop = 6, kAxis = 34;
constexpr int kBucketColours = 8;

double begin_of(const std::vector<Span>& spans) {
  return std::ranges::min(spans, {}, &Span::begin_us).begin_us;
}
double end_of(const std::vector<Span>& spans) {
  return std::ranges::max(spans, {}, &Span::end_us).end_us;
}

// Returns rank 0's spans of the step with the median time; none: not recorded.
std::vector<Span> typical_step(const Series& series) {
  std::map<std::int64_t, std::vector<Span>> steps;
  for (const Span& span : series.spans) {
    if (span.rank == 0) steps[span.step].push_back(span);
  }
  std::vector<std::vector<Span>> whole;
  for (auto& [step, spans] : steps) {
    const bool loop = std::ranges::any_of(
        spans, [](const Span& span) { return span.kind == Span::Kind::backward; });
    if (loop) whole.push_back(std::move(spans));
  }
  if (whole.empty()) return {};
  const auto duration = [](const std::vector<Span>& spans) {
    return end_of(spans) - begin_of(spans);
  };
  std::ranges::sort(whole, {}, duration);
  return whole[whole.size() / 2];
}

// Collectives of one station may overlap: each gets the row's first free strip.
std::map<const Span*, int> parts_of(const std::vector<const Span*>& row) {
  std::map<const Span*, int> part;
  std::vector<double> busy_until;
  for (const Span* span : row) {
    std::size_t place = 0;
    while (place < busy_until.size() && busy_until[place] > span->begin_us + 1) ++place;
    if (place == busy_until.size()) busy_until.push_back(0);
    busy_until[place] = span->end_us;
    part[span] = static_cast<int>(place);
  }
  return part;
}

class Drawing {
 public:
  Drawing(const std::vector<Span>& spans, double longest_us)
      : spans_(spans),
        origin_(begin_of(spans)),
        x_(Scale::from_zero(longest_us / 1000, kTimelineLeft,
                            kTimelineWidth - kTimelineRight)) {
    draw_loop();
    draw_stations();
    draw_axis();
  }
  std::string svg() const {
    std::ostringstream text;
    text << "<svg class=steps viewBox='0 0 " << kTimelineWidth << " " << coordinate(y_)
         << "' role=img aria-label='timeline of one step'>" << grid_.str() << body_.str()
         << "</svg>";
    return text.str();
  }

 private:
  double at(double us) const { return x_((us - origin_) / 1000); }

  void label(const std::string& text) {
    body_ << "<text class=tick x=" << kTimelineLeft - 7
          << " y=" << coordinate(y_ + kRow / 2) << " dy=.34em text-anchor=end>"
          << escaped(text) << "</text>";
  }
  // Draws a box from `begin` to `end`, with a text in it if that fits.
  void box(const std::string& look, double begin, double end, double top, double height,
           const std::string& text, const std::string& hint) {
    const double left = at(begin);
    const double width = std::max(0.8, at(end) - left);
    body_ << "<rect class='" << look << "' x=" << coordinate(left)
          << " y=" << coordinate(top) << " width=" << coordinate(width)
          << " height=" << coordinate(height) << " rx=" << (width > 5 ? 2 : 0.5)
          << "><title>" << escaped(hint) << ", " << base::readable((end - begin) / 1000)
          << " ms</title></rect>";
    if (width < 5.5 * static_cast<double>(text.size()) + 4 || height < 10) return;
    body_ << "<text class='in "
          << (look.starts_with("w") && !look.starts_with("work") ? "on" : "")
          << "' x=" << coordinate(left + width / 2) << " y=" << coordinate(top + height / 2)
          << " dy=.35em text-anchor=middle>" << escaped(text) << "</text>";
  }

  void draw_loop() {
    label("training");
    double last_ready = 0;
    std::map<std::int64_t, double> ready;
    for (const Span& span : spans_) {
      if (span.station < 0) continue;
      ready[span.bucket] = span.ready_us;
      last_ready = std::max(last_ready, span.ready_us);
    }
    for (const Span& span : spans_) {
      if (span.station >= 0) continue;
      const std::string name = name_of(span.kind);
      const bool waits = span.kind == Span::Kind::backward && last_ready > span.begin_us &&
                         last_ready < span.end_us;
      const double computed = waits ? last_ready : span.end_us;
      box("loop " + name, span.begin_us, computed, y_, kRow, name, name);
      if (waits) box("wait", last_ready, span.end_us, y_, kRow, "waits", "waits");
    }
    for (const auto& [bucket, time] : ready) {
      const double x = at(time), top = y_ + kRow;
      body_ << "<path class='ready b" << bucket % kBucketColours << "' d='M"
            << coordinate(x) << " " << coordinate(top + 1) << "l-3 5h6z'><title>bucket "
            << bucket << " is ready</title></path>";
    }
    y_ += kRow + kGap + 4;
  }

  void draw_stations() {
    std::map<std::pair<int, bool>, std::vector<const Span*>> rows;
    for (const Span& span : spans_) {
      if (span.station >= 0)
        rows[{span.station, span.kind == Span::Kind::collective}].push_back(&span);
    }
    for (auto& [row, spans] : rows) {
      const auto& [station, wire] = row;
      std::ranges::sort(spans, {}, &Span::begin_us);
      label((wire ? "wire " : "station ") + std::to_string(station));
      draw_row(spans, wire);
      y_ += kRow + kGap;
    }
  }

  void draw_row(const std::vector<const Span*>& spans, bool wire) {
    body_ << "<rect class=lane x=" << kTimelineLeft << " y=" << coordinate(y_)
          << " width=" << kTimelineWidth - kTimelineLeft - kTimelineRight
          << " height=" << kRow << " rx=2 />";
    const std::map<const Span*, int> parts = parts_of(spans);
    int most = 0;
    for (const auto& [span, part] : parts) most = std::max(most, part);
    const double height = kRow / (most + 1);
    for (const Span* span : spans) {
      const std::string bucket = std::to_string(span->bucket);
      std::string hint = "bucket " + bucket;
      if (wire)
        hint += ", " + base::bytes_text(static_cast<double>(span->bytes)) + " on the wire";
      const std::string look =
          (wire ? "wire b" : "work b") + std::to_string(span->bucket % kBucketColours);
      box(look, span->begin_us, span->end_us, y_ + height * parts.at(span), height, bucket,
          hint);
    }
  }

  void draw_axis() {
    for (double mark : x_.marks(5)) {
      const std::string x = coordinate(x_(mark));
      grid_ << "<line class=grid x1=" << x << " x2=" << x << " y1=" << kTimelineTop
            << " y2=" << coordinate(y_) << " />";
      body_ << "<text class=tick x=" << x << " y=" << coordinate(y_ + 13)
            << " text-anchor=middle>" << base::readable(mark) << "</text>";
    }
    body_ << "<text class=label x=" << (kTimelineLeft + kTimelineWidth - kTimelineRight) / 2
          << " y=" << coordinate(y_ + 28) << " text-anchor=middle>milliseconds</text>";
    y_ += kAxis;
  }

  const std::vector<Span>& spans_;
  const double origin_;
  const Scale x_;
  std::ostringstream grid_;  // drawn first, below the rest
  std::ostringstream body_;
  double y_ = kTimelineTop;
};

}  // namespace

std::string timelines(std::span<const Series> all, const std::string& link) {
  std::vector<std::pair<const Series*, std::vector<Span>>> steps;
  double longest = 0;
  for (const Series& series : all) {
    if (series.link != link) continue;
    std::vector<Span> spans = typical_step(series);
    if (spans.empty()) continue;
    longest = std::max(longest, end_of(spans) - begin_of(spans));
    steps.emplace_back(&series, std::move(spans));
  }
  std::string html;
  for (const auto& [series, spans] : steps) {
    html += "<figure class=card data-name=\"" + escaped(series->hook) +
            "\"><figcaption><i class='dot " + colour_of(series->hook, all) + "'></i>" +
            escaped(series->hook) + " <span>" + escaped(link_name(link)) +
            "</span></figcaption>" + Drawing(spans, longest).svg() + "</figure>";
  }
  return html;
}

}  // namespace brigade::report
