#include "common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace brigade::tool {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool locale_has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = variable(name);
    if (value.empty()) continue;
    std::ranges::transform(value, value.begin(),
                           [](unsigned char c) { return std::toupper(c); });
    return value.find("UTF-8") != std::string::npos ||
           value.find("UTF8") != std::string::npos;
  }
  return false;
}

// The length of the escape sequence at the front of `text`, or 0.
std::size_t escape_length(std::string_view text) {
  if (!text.starts_with("\033[")) return 0;
  const std::size_t end = text.find('m');
  return end == std::string_view::npos ? text.size() : end + 1;
}

bool goes_on(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

Terminal::Terminal()
    : live_(isatty(STDOUT_FILENO) && variable("TERM") != "dumb"),
      colours_(live_ && variable("NO_COLOR").empty()),
      utf8_(locale_has_utf8()) {}

Terminal Terminal::plain() {
  Terminal plain;
  plain.live_ = plain.colours_ = false;
  return plain;
}

int Terminal::width() const {
  winsize size{};
  const bool known = live_ && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col;
  return known ? size.ws_col : 80;
}

int Terminal::height() const {
  winsize size{};
  const bool known = live_ && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row;
  return known ? size.ws_row : 24;
}

std::string Terminal::paint(Paint paint, std::string_view text) const {
  constexpr const char* kCodes[] = {"", "1", "2", "32", "31", "33", "34", "36"};
  if (!colours_ || paint == Paint::none) return std::string(text);
  return std::string("\033[") + kCodes[static_cast<int>(paint)] + "m" + std::string(text) +
         "\033[0m";
}

std::string Terminal::bar(double fraction, int columns) const {
  const int full = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * columns));
  std::string text;
  for (int i = 0; i < columns; ++i)
    text += utf8_ ? (i < full ? "█" : "░") : (i < full ? "#" : "-");
  return text;
}

void Terminal::progress(const std::string& text) {
  if (!live_) return;
  const auto columns = static_cast<std::size_t>(std::max(1, width() - 1));
  std::printf("\r%s\033[K", cut_to(text, columns).c_str());
  std::fflush(stdout);
  open_ = true;
  block_ = 0;
}

void Terminal::block(const std::vector<std::string>& lines) {
  if (!live_ || lines.size() >= static_cast<std::size_t>(height())) return;
  const auto columns = static_cast<std::size_t>(std::max(1, width() - 1));
  std::string text = block_ > 0 ? "\033[" + std::to_string(block_) + "A" : "";
  for (const std::string& one : lines) text += "\r" + cut_to(one, columns) + "\033[K\n";
  // One write, so that it does not flicker.
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  block_ = lines.size();
  open_ = false;
}

void Terminal::line(const std::string& text) {
  std::printf("%s%s\n", open_ ? "\r\033[K" : "", text.c_str());
  std::fflush(stdout);
  open_ = false;
  block_ = 0;
}

void Terminal::sentence(const std::string& text) {
  if (!live_) return line(text);
  const auto columns = static_cast<std::size_t>(std::max(20, width()));
  std::istringstream words(text);
  std::string row;
  for (std::string word; words >> word;) {
    if (!row.empty() && columns_of(row) + 1 + columns_of(word) > columns) {
      line(row);
      row.clear();
    }
    row += (row.empty() ? "" : " ") + word;
  }
  line(row);
}

std::string cut_to(std::string_view text, std::size_t columns) {
  std::string kept;
  std::size_t taken = 0;
  while (!text.empty()) {
    if (const std::size_t escape = escape_length(text)) {
      kept += text.substr(0, escape);
      text.remove_prefix(escape);
      continue;
    }
    if (!goes_on(text[0]) && ++taken > columns) {
      // Cuts letters but keeps the codes, because colours still have to end.
      text.remove_prefix(1);
      taken = columns;
      while (!text.empty() && goes_on(text[0])) text.remove_prefix(1);
      continue;
    }
    kept += text[0];
    text.remove_prefix(1);
  }
  return kept;
}

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    if (const std::size_t escape = escape_length(text)) {
      text.remove_prefix(escape);
      continue;
    }
    if (!goes_on(text[0])) ++columns;
    text.remove_prefix(1);
  }
  return columns;
}

std::string padded(std::string_view text, int columns) {
  const std::size_t wanted = static_cast<std::size_t>(std::abs(columns));
  const std::size_t there = columns_of(text);
  const std::string spaces(wanted > there ? wanted - there : 0, ' ');
  return columns < 0 ? spaces + std::string(text) : std::string(text) + spaces;
}

std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      line += i == 0 ? padded(row[i], width) : "  " + padded(row[i], -width);
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace brigade::tool
