// The report's lines and bars.
#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "base/number_text.h"
#include "report/svg.h"

namespace brigade::report {
namespace {

// A drawing has this size in CSS pixels and is scaled little, so that its letters are
// readable at any width of the window.
constexpr double kWidth = 400, kHeight = 232;
constexpr double kLeft = 44, kRight = 12, kTop = 10, kBottom = 36;
constexpr std::size_t kMostPoints = 150;

struct Spot {
  double x, y;
};
struct Line {
  const Series* series;
  std::vector<Spot> spots;
};

double across_of(const StepPoint& point, Across across) {
  switch (across) {
    case Across::steps:
      return static_cast<double>(point.step);
    case Across::seconds:
      return point.seconds;
    case Across::bytes:
      return static_cast<double>(point.bytes_sent) / 1e6;
  }
  return 0;
}

const char* across_name(Across across) {
  switch (across) {
    case Across::steps:
      return "steps";
    case Across::seconds:
      return "seconds of training";
    case Across::bytes:
      return "MB sent by a rank";
  }
  return "";
}

// One batch's loss varies much, so this shows the mean of the last few.
std::vector<Spot> losses(const Series& series, Across across) {
  const std::size_t window = std::max<std::size_t>(1, series.points.size() / 15);
  std::vector<Spot> spots;
  double sum = 0;
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    sum += series.points[i].loss;
    if (i >= window) sum -= series.points[i - window].loss;
    const double mean = sum / static_cast<double>(std::min(i + 1, window));
    spots.push_back({across_of(series.points[i], across), mean});
  }
  return spots;
}

std::vector<Spot> accuracies(const Series& series, Across across) {
  std::vector<Spot> spots;
  for (const StepPoint& point : series.points) {
    if (point.accuracy) spots.push_back({across_of(point, across), *point.accuracy});
  }
  return spots;
}

void thin_out(std::vector<Spot>& spots) {
  if (spots.size() <= kMostPoints) return;
  std::vector<Spot> kept;
  for (std::size_t i = 0; i < kMostPoints; ++i)
    kept.push_back(spots[i * (spots.size() - 1) / (kMostPoints - 1)]);
  spots = std::move(kept);
}

std::vector<Line> lines_of(std::span<const Series> all, Up up, Across across) {
  std::vector<Line> lines;
  for (const Series& series : all) {
    if (series.link != all.front().link) continue;  // the same training, only slower
    Line line{&series,
              up == Up::loss ? losses(series, across) : accuracies(series, across)};
    std::erase_if(line.spots, [&](const Spot& spot) {
      return !std::isfinite(spot.y) || (across == Across::bytes && spot.x <= 0) ||
             (up == Up::loss && spot.y <= 0);
    });
    thin_out(line.spots);
    if (line.spots.size() > 1) lines.push_back(std::move(line));
  }
  return lines;
}

Scale scale_across(const std::vector<Line>& lines, Across across) {
  double low = lines[0].spots[0].x, high = low;
  for (const Line& line : lines) {
    low = std::min(low, line.spots.front().x);
    high = std::max(high, line.spots.back().x);
  }
  if (across == Across::bytes && high > 20 * low)
    return {Scale::Kind::logarithmic, low, high * 1.1, kLeft, kWidth - kRight};
  return {Scale::Kind::linear, 0, high, kLeft, kWidth - kRight};
}

Scale scale_up(const std::vector<Line>& lines, Up up) {
  double low = lines[0].spots[0].y, high = low, early = 1;
  for (const Line& line : lines) {
    for (const Spot& spot : line.spots) {
      low = std::min(low, spot.y);
      high = std::max(high, spot.y);
    }
    early = std::min(early, line.spots[line.spots.size() / 5].y);
  }
  const double bottom = kHeight - kBottom;
  if (up == Up::loss)
    return {Scale::Kind::logarithmic, low * 0.85, high * 1.15, bottom, kTop};
  // The first steps are all alike; the later ones need the room.
  return {Scale::Kind::linear, std::clamp(std::floor(early * 10) / 10, 0.0, 0.9), 1.004,
          bottom, kTop};
}

void draw_axes(std::ostringstream& svg, const Scale& x, const Scale& y,
               const std::string& label, bool percent) {
  for (double mark : y.marks(4)) {
    const std::string at = coordinate(y(mark));
    svg << "<line class=grid x1=" << kLeft << " x2=" << kWidth - kRight << " y1=" << at
        << " y2=" << at << " /><text class=tick x=" << kLeft - 6 << " y=" << at
        << " dy=.32em text-anchor=end>"
        << (percent ? coordinate(mark * 100) + "%" : base::readable(mark)) << "</text>";
  }
  svg << "<line class=axis x1=" << kLeft << " x2=" << kWidth - kRight
      << " y1=" << kHeight - kBottom << " y2=" << kHeight - kBottom << " />";
  for (double mark : x.marks(5)) {
    svg << "<text class=tick x=" << coordinate(x(mark)) << " y=" << kHeight - kBottom + 15
        << " text-anchor=middle>" << base::readable(mark) << "</text>";
  }
  svg << "<text class=label x=" << (kLeft + kWidth - kRight) / 2 << " y=" << kHeight - 4
      << " text-anchor=middle>" << escaped(label) << "</text>";
}

void draw_line(std::ostringstream& svg, const Line& line, const Scale& x, const Scale& y,
               const std::string& colour) {
  svg << "<path class='line " << colour << "' data-name=\"" << escaped(line.series->hook)
      << "\" d='";
  const char* command = "M";
  for (const Spot& spot : line.spots) {
    svg << command << coordinate(x(spot.x)) << " " << coordinate(y(spot.y));
    command = "L";
  }
  const Spot& last = line.spots.back();
  svg << "'/><circle class='end " << colour << "' data-name=\""
      << escaped(line.series->hook) << "\" r=2.6 cx=" << coordinate(x(last.x))
      << " cy=" << coordinate(y(last.y)) << " />";
}

// Draws a line from top to bottom where the members changed; pointing at it shows why.
void draw_generations(std::ostringstream& svg, const Series& series, const Scale& x,
                      Across across) {
  for (const GenerationMark& mark : series.generations) {
    const StepPoint* at = nullptr;
    for (const StepPoint& point : series.points)
      if (point.step <= mark.step) at = &point;
    const double value = at ? across_of(*at, across) : 0;
    if (!at || !x.holds(value)) continue;
    const std::string place = coordinate(x(value));
    svg << "<line class=axis stroke-dasharray='3 3' x1=" << place << " x2=" << place
        << " y1=" << kTop << " y2=" << kHeight - kBottom << " data-name=\""
        << escaped(series.hook) << "\"><title>after step " << mark.step << ": "
        << escaped(mark.why) << "; " << mark.members
        << (mark.members == 1 ? " worker goes on" : " workers go on") << "</title></line>";
  }
}

}  // namespace

std::string colour_of(const std::string& hook, std::span<const Series> all) {
  if (hook == "allreduce") return "base";
  int number = 0;
  std::set<std::string> seen;
  for (const Series& series : all) {
    if (series.hook == "allreduce" || !seen.insert(series.hook).second) continue;
    if (series.hook == hook && !series.takes_mean) return "none";
    if (series.takes_mean) ++number;
    if (series.hook == hook) return "s" + std::to_string((number - 1) % 10 + 1);
  }
  return "s1";
}

std::string line_chart(std::span<const Series> series, Up up, Across across) {
  const std::vector<Line> lines = lines_of(series, up, across);
  if (lines.empty()) return "";
  const Scale x = scale_across(lines, across);
  const Scale y = scale_up(lines, up);
  const std::string title = up == Up::loss ? "Training loss" : "Test accuracy";
  // Curves that start below the lowest tick are cut off there.
  const std::string clip = "clip" + std::to_string(static_cast<int>(up)) +
                           std::to_string(static_cast<int>(across));
  std::ostringstream svg;
  svg << "<figure class=card><figcaption>" << title << " <span>against "
      << across_name(across) << "</span></figcaption><svg class=plot viewBox='0 0 "
      << kWidth << " " << kHeight << "' role=img aria-label='" << title << " against "
      << across_name(across) << "'><clipPath id=" << clip << "><rect x=" << kLeft - 3
      << " y=0 width=" << kWidth - kLeft - kRight + 6 << " height=" << kHeight - kBottom + 1
      << " /></clipPath>";
  draw_axes(svg, x, y, across_name(across), up == Up::accuracy);
  svg << "<g clip-path='url(#" << clip << ")'>";
  for (const Line& line : lines) draw_generations(svg, *line.series, x, across);
  // All-reduce lies under the others, because they are compared with it.
  for (bool base : {true, false}) {
    for (const Line& line : lines) {
      const std::string colour = colour_of(line.series->hook, series);
      if ((colour == "base") == base) draw_line(svg, line, x, y, colour);
    }
  }
  svg << "</g></svg></figure>";
  return svg.str();
}

std::string bar_chart(std::span<const Series> all, const std::string& link, Amount amount) {
  std::vector<const Series*> shown;
  double most = 0;
  const auto value = [&](const Series& series) {
    return amount == Amount::bytes ? series.bytes_per_step : series.step_ms;
  };
  for (const Series& series : all) {
    if (series.link != link) continue;
    shown.push_back(&series);
    most = std::max(most, value(series));
  }
  if (shown.empty() || most <= 0) return "";
  std::ostringstream html;
  html << "<figure class=card><figcaption>"
       << (amount == Amount::bytes ? "Sent by a rank and step" : "Time of a step")
       << " <span>" << escaped(link_name(link)) << "</span></figcaption><div class=bars>";
  for (const Series* series : shown) {
    const double fraction = value(*series) / most;
    html << "<div class=bar data-name=\"" << escaped(series->hook) << "\"><span class=who>"
         << escaped(series->hook) << "</span><span class=track><i class='"
         << colour_of(series->hook, all)
         << "' style='width:" << coordinate(std::max(0.4, fraction * 100))
         << "%'></i></span><span class=num>"
         << (amount == Amount::bytes ? base::bytes_text(value(*series))
                                     : base::ms_text(value(*series)) + " ms")
         << "</span></div>";
  }
  html << "</div></figure>";
  return html.str();
}

std::vector<std::string> links_of(std::span<const Series> all) {
  std::vector<std::string> links;
  for (const Series& series : all) {
    if (std::ranges::find(links, series.link) == links.end()) links.push_back(series.link);
  }
  return links;
}

std::string link_name(const std::string& link) {
  return link.empty() ? "over loopback" : "over " + link;
}

}  // namespace brigade::report
