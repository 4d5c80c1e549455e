#include "brigade/report.h"

#include <cmath>
#include <set>
#include <sstream>

#include "base/atomic_file.h"
#include "base/number_text.h"
#include "report/charts.h"
#include "report/svg.h"
#include "report/waiting.h"

namespace brigade::report {
namespace {

// A hook that loses more accuracy is not praised for its bytes or its time.
constexpr double kFewPoints = 0.02;

// The report's logo: three buckets.
constexpr const char* kMark =
    "<svg viewBox='0 0 74 22' aria-hidden=true><g fill=none stroke=currentColor "
    "stroke-width=1.8 stroke-linejoin=round><path d='M4 7h14l-2 12H6z'/><path d='M29 "
    "7h14l-2 12H31z'/><path d='M54 7h14l-2 12H56z'/><path d='M4 7q7-9 14 0M29 7q7-9 14 "
    "0M54 7q7-9 14 0'/></g><path fill=currentColor d='M21 12h4l-1.5-2 4 3-4 3 "
    "1.5-2h-4zM46 12h4l-1.5-2 4 3-4 3 1.5-2h-4z' opacity=.6 /></svg>";
constexpr const char* kHatch =
    "<svg width=0 height=0 style='position:absolute' aria-hidden=true><pattern id=hatch "
    "width=5 height=5 patternUnits=userSpaceOnUse patternTransform='rotate(45)'><line "
    "x1=0 y1=0 x2=0 y2=5 stroke='var(--soft)' stroke-opacity=.45 stroke-width=1.6 "
    "/></pattern></svg>";

std::string percent(double value) {
  return std::isfinite(value) ? base::decimals(value * 100, 1) + "%" : "n/a";
}

void tile(std::ostringstream& html, const std::string& number, const std::string& text) {
  html << "<div class=tile><b>" << escaped(number) << "</b><span>" << escaped(text)
       << "</span></div>";
}

// Whether its longest training is as good as all-reduce; over a slow link it has few steps.
bool learned(const Series& series, std::span<const Series> all) {
  const Series* longest = &series;
  for (const Series& other : all) {
    if (other.hook == series.hook && other.points.size() > longest->points.size())
      longest = &other;
  }
  const Series* base = baseline_of(*longest, all);
  return !base || base->test_accuracy - longest->test_accuracy <= kFewPoints;
}

// Writes the most telling numbers, each only if it can be given.
void tiles(std::ostringstream& html, const RunRecord& record) {
  const Series *least = nullptr, *best = nullptr;
  double gain = 1;
  std::set<std::string> hooks;
  bool identical = true;
  for (const Series& series : record.series) {
    hooks.insert(series.hook);
    if (!series.takes_mean) continue;
    identical = identical && series.identical();
    const Series* base = baseline_of(series, record.series);
    if (!learned(series, record.series)) continue;
    if (series.link == record.series[0].link && series.bytes_per_step > 0 &&
        (!least || series.bytes_per_step < least->bytes_per_step)) {
      least = &series;
    }
    if (!series.link.empty() && base && base->step_ms / series.step_ms > gain) {
      gain = base->step_ms / series.step_ms;
      best = &series;
    }
  }
  html << "<div class=tiles>";
  tile(html, std::to_string(hooks.size()),
       hooks.size() == 1 ? "hook: " + *hooks.begin() : "hooks, one training each");
  if (const Series* base = baseline_of(record.series[0], record.series)) {
    tile(html, base::ms_text(base->step_ms) + " ms",
         "a step with plain all-reduce, " + link_name(base->link));
    if (least && least != base) {
      tile(html, base::readable(base->bytes_per_step / least->bytes_per_step) + " ×",
           "fewer bytes with " + least->hook);
    }
  }
  if (best)
    tile(html, base::readable(gain) + " ×",
         "quicker with " + best->hook + " " + link_name(best->link));
  tile(html, identical ? "identical" : "DIFFERENT",
       identical ? "replicas, bit by bit, after every averaging hook"
                 : "replicas: see the table");
  html << "</div>";
}

void chips(std::ostringstream& html, const RunRecord& record) {
  std::set<std::string> seen;
  html << "<div class=chips>";
  for (const Series& series : record.series) {
    if (!seen.insert(series.hook).second) continue;
    html << "<button class=chip data-name=\"" << escaped(series.hook) << "\"><i class='dot "
         << colour_of(series.hook, record.series) << "'></i>" << escaped(series.hook)
         << "</button>";
  }
  html << "</div>";
}

void section(std::ostringstream& html, const std::string& title, const std::string& hint,
             const std::string& content) {
  if (content.empty()) return;
  html << "<h2>" << title << "</h2><p>" << hint << "</p>" << content;
}

std::string grid(const std::string& cards) {
  return cards.empty() ? "" : "<div class=grid3>" + cards + "</div>";
}

std::string learning(const RunRecord& record) {
  std::string cards;
  for (Up up : {Up::loss, Up::accuracy}) {
    for (Across across : {Across::steps, Across::seconds, Across::bytes})
      cards += line_chart(record.series, up, across);
  }
  return grid(cards);
}

std::string costs(const RunRecord& record) {
  std::string cards;
  const auto links = links_of(record.series);
  if (!links.empty()) cards += bar_chart(record.series, links[0], Amount::bytes);
  for (const std::string& link : links)
    cards += bar_chart(record.series, link, Amount::time);
  return grid(cards);
}

std::string steps(const RunRecord& record) {
  std::string html;
  for (const std::string& link : links_of(record.series)) {
    const std::string cards = grid(timelines(record.series, link));
    if (!cards.empty() && !html.empty()) html += "<p class=hint></p>";
    html += cards;
  }
  return html.empty() ? "" : kHatch + html;
}

std::string result_row(const Series& series, const RunRecord& record) {
  const Series* base = baseline_of(series, record.series);
  std::ostringstream html;
  html << "<tr data-name=\"" << escaped(series.hook) << "\"><td><i class='dot "
       << colour_of(series.hook, record.series) << "'></i>" << escaped(series.hook)
       << "</td><td>" << percent(series.test_accuracy) << "</td><td>";
  if (base && base != &series) {
    html << base::with_sign((series.test_accuracy - base->test_accuracy) * 100, 1);
  }
  html << "</td><td>" << base::decimals(series.final_loss, 4) << "</td><td>"
       << base::ms_text(series.step_ms) << "</td><td>"
       << base::decimals(series.bytes_per_step / 1e6, 3) << "</td><td>";
  if (base && base != &series && series.bytes_per_step > 0)
    html << base::decimals(base->bytes_per_step / series.bytes_per_step, 1) << " ×";
  html << "</td><td>" << (series.bytes_per_step > 0 ? percent(series.overlap) : "")
       << "</td><td>";
  if (!series.takes_mean) {
    html << "<span class=soft>differ, as they must</span>";
  } else if (series.identical()) {
    html << "<span class=yes>identical</span>";
  } else {
    html << "<span class=no>DIFFERENT</span>";
  }
  html << "</td></tr>";
  return html.str();
}

// Gives ", 30 steps", because trainings over another link may be shorter.
std::string steps_text(const RunRecord& record, const std::string& link) {
  for (const Series& series : record.series) {
    if (series.link == link) return ", " + std::to_string(series.steps()) + " steps";
  }
  return "";
}

std::string results(const RunRecord& record) {
  if (record.series.empty()) return "";
  const auto links = links_of(record.series);
  std::string html =
      "<div class=scroll><table><thead><tr><th>hook</th><th>test accuracy</th><th>points "
      "to all-reduce</th><th>final loss</th><th>ms a step</th><th>MB sent a step</th>"
      "<th>fewer bytes</th><th>overlap</th><th>replicas</th></tr></thead><tbody>";
  for (const std::string& link : links) {
    if (links.size() > 1) {
      html += "<tr class=parting><td>" + escaped(link_name(link)) +
              steps_text(record, link) + "</td><td colspan=8></td></tr>";
    }
    for (const Series& series : record.series) {
      if (series.link == link) html += result_row(series, record);
    }
  }
  return html + "</tbody></table></div>";
}

std::string table_html(const Table& table) {
  std::string html = "<div class=scroll><table><thead><tr>";
  for (const std::string& column : table.columns)
    html += "<th>" + escaped(column) + "</th>";
  html += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + escaped(cell) + "</td>";
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

std::string repeat(const RunRecord& record) {
  std::string html;
  if (!record.command.empty()) html += "<pre>" + escaped(record.command) + "</pre>";
  html += "<dl>";
  for (const auto& [name, value] : record.setup)
    html += "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>";
  return html + "</dl>";
}

}  // namespace

std::string report_html(const RunRecord& record) {
  std::ostringstream html;
  html << "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
          "content='width=device-width,initial-scale=1'><title>"
       << escaped(record.title) << "</title><link rel=icon href='data:,'><style>"
       << kReportStyle << "</style></head><body><main><header><div class=brand>" << kMark
       << "brigade</div><h1>" << escaped(record.title) << "</h1>";
  for (const std::string& sentence : record.verdict)
    html << "<p class=lead>" << escaped(sentence) << "</p>";
  html << "</header>";
  if (!record.series.empty()) {
    tiles(html, record);
    html << "<h2>Learning</h2><p>Point at a hook to see it alone. The loss is the mean of "
            "the last steps, on a logarithmic axis; accuracy is measured on examples that "
            "were not trained on.</p>";
    chips(html, record);
    html << learning(record);
    section(html, "Cost", "The median step, and what one rank puts on the wire in it.",
            costs(record));
    section(html, "One step, bucket by bucket",
            "A typical step of rank 0. A triangle marks the moment at which backward has a "
            "bucket ready; a station computes (full colour), then its collective is on the "
            "wire (light). What lies beneath backward costs nothing; what lies beneath "
            "<em>waits</em> is what the step pays for communication.",
            steps(record));
    section(html, "Numbers",
            "Of rank 0; bytes are payload, by the algorithm of each collective.",
            results(record));
  }
  for (const Table& table : record.tables)
    section(html, escaped(table.title), escaped(table.note), table_html(table));
  if (record.series.size() == 1) {  // for several it would be too much
    for (const Table& table : waiting_tables(record.series[0].spans))
      section(html, escaped(table.title), escaped(table.note), table_html(table));
  }
  section(html, "Repeat it", "", repeat(record));
  html << "<footer>Written by brigade; everything is in this file.</footer></main><div "
          "id=tip></div><script>"
       << kReportScript << "</script></body></html>\n";
  return html.str();
}

void write_report(const RunRecord& record, const std::string& path) {
  base::write_whole(path, report_html(record));
}

}  // namespace brigade::report
