#include "demo/print.h"

#include "common/options.h"

namespace brigade::tool {
namespace {

// The line of one training: its progress and its quality.
std::string status_line(const Terminal& terminal, const Series& series, int steps) {
  const std::size_t step = series.points.size();
  const bool done = step == static_cast<std::size_t>(steps);
  const std::string count = std::to_string(step) + "/" + std::to_string(steps);
  std::string text = "  " + padded(series.hook, 26);
  if (terminal.live()) {
    text += terminal.paint(done ? Paint::green : Paint::cyan,
                           terminal.bar(static_cast<double>(step) / steps, 16)) +
            " ";
  }
  text += padded(count, -8);
  if (step == 0) return text;
  text += "  loss " + padded(decimals(series.points.back().loss, 4), -6) + "  accuracy " +
          padded(decimals(series.test_accuracy * 100, 1) + "%", -6);
  return series.step_ms > 0 ? text + "  " + ms_text(series.step_ms) + " ms" : text;
}

std::vector<std::string> result_row(const Series& series, std::span<const Series> all) {
  const Series* base = baseline_of(series, all);
  const bool compared = base && base != &series;
  const double points = compared ? series.test_accuracy - base->test_accuracy : 0;
  const bool sends = series.bytes_per_step > 0;
  return {
      series.hook,
      decimals(series.test_accuracy * 100, 1),
      compared ? with_sign(points * 100, 1) : "",
      decimals(series.final_loss, 4),
      ms_text(series.step_ms),
      decimals(series.bytes_per_step / 1e6, 3),
      compared && sends ? decimals(base->bytes_per_step / series.bytes_per_step, 1) : "",
      sends ? decimals(series.overlap * 100, 0) : ""};
}

// With too few steps for accuracy to mean something, shows only what the link changes.
std::vector<std::string> link_row(const Series& series, std::span<const Series> all) {
  const Series* base = baseline_of(series, all);
  const std::vector<std::string> row = result_row(series, all);
  const bool compared = base && base != &series;
  return {row[0], row[4], compared ? decimals(base->step_ms / series.step_ms, 1) : "",
          row[5], row[6], row[7]};
}

}  // namespace

void Board::set(std::size_t place, const Series& series) {
  if (lines_.size() <= place) lines_.resize(place + 1);
  lines_[place] = status_line(terminal_, series, steps_);
}

void Board::draw() {
  if (shown_) terminal_.block(lines_);
}

void Board::close() {
  if (!shown_) return;
  draw();
  if (terminal_.blocked()) return;
  for (const std::string& line : lines_) terminal_.line(line);
}

void print_table(Terminal& terminal, std::span<const Series> all, const std::string& link) {
  std::vector<std::vector<std::string>> rows{
      {"", "test", "differ-", "final", "ms a", "MB sent", "times", "over-"},
      {"hook", "acc. %", "ence", "loss", "step", "a step", "less", "lap %"}};
  if (!link.empty()) {
    rows = {{"", "ms a", "times", "MB sent", "times", "over-"},
            {"hook", "step", "as quick", "a step", "less", "lap %"}};
  }
  for (const Series& series : all) {
    if (series.link == link)
      rows.push_back(link.empty() ? result_row(series, all) : link_row(series, all));
  }
  const auto lines = table_lines(rows);
  for (std::size_t i = 0; i < lines.size(); ++i)
    terminal.line(i < 2 ? terminal.paint(Paint::dim, lines[i]) : lines[i]);
}

bool print_replicas(Terminal& terminal, std::span<const Series> all) {
  bool good = true;
  std::string different, example;
  for (const Series& series : all) {
    if (!series.takes_mean) continue;
    if (series.identical()) {
      if (example.empty()) example = series.fingerprints[0] + " after " + series.hook;
      continue;
    }
    good = false;
    different += "\n  " + series.hook + ":";
    for (const std::string& one : series.fingerprints) different += " " + one;
  }
  if (good) {
    terminal.sentence("Replicas: " + terminal.paint(Paint::green, "identical bit by bit") +
                      " under every hook that averages (" + example + ").");
  } else {
    terminal.line("Replicas: " + terminal.paint(Paint::red, "DIFFERENT") + different);
  }
  return good;
}

void print_suggestions(Terminal& terminal) {
  terminal.line();
  terminal.line("Try next:");
  terminal.line(
      "  brigade demo -n 4 --hook int8 --hook allreduce     four ranks, two hooks");
  terminal.line("  brigade run -n 2 PROGRAM                           your own program");
  terminal.line(
      "  docs/getting_started.md                            the five lines it takes");
}

}  // namespace brigade::tool
