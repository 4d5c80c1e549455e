// Shows what a command does while it works: on a terminal as a line that is updated, else
// as plain lines.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::tool {

enum class Paint : std::uint8_t { none, bold, dim, green, red, yellow, blue, cyan };

// Writes to stdout. One process at a time.
class Terminal {
 public:
  // Looks at stdout, TERM, NO_COLOR and the locale.
  Terminal();
  // Makes one that uses no codes, whatever stdout is.
  static Terminal plain();
  // Whether lines can be overwritten.
  bool live() const { return live_; }
  // Columns; 80 if stdout is no terminal.
  int width() const;
  int height() const;

  // `text` in a colour, where colours are wanted.
  std::string paint(Paint paint, std::string_view text) const;
  // "████░░░░", or "####----" in a locale without UTF-8.
  std::string bar(double fraction, int columns) const;

  // Shows `text`, cut to the width, as the updated line, in place of the previous one. Does
  // nothing where lines cannot be overwritten.
  void progress(const std::string& text);
  // The same for several lines, one below the other; they stay when other output follows.
  // Does nothing where lines cannot be overwritten, or where there are more than fit.
  void block(const std::vector<std::string>& lines);
  bool blocked() const { return block_ > 0; }
  // A line that stays; it replaces the progress line.
  void line(const std::string& text = "");
  // A sentence: as line(), but wrapped between words on a terminal.
  void sentence(const std::string& text);

 private:
  bool live_;
  bool colours_;
  bool utf8_;
  bool open_ = false;      // whether a progress line is shown
  std::size_t block_ = 0;  // lines of the block that is shown
};

// `text` cut to `columns`; codes of colours stay.
std::string cut_to(std::string_view text, std::size_t columns);
// How many columns `text` takes: colour codes take none, a letter of several bytes one.
std::size_t columns_of(std::string_view text);
// Adds spaces up to `columns`; negative: before the text.
std::string padded(std::string_view text, int columns);
// Lines of a table: the first column is aligned left, all others right. The first row is
// the head.
std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows);

}  // namespace brigade::tool
