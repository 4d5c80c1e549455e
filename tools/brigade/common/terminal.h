// What a command says while it works: on a terminal a line that follows what happens, else
// plain lines.
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
  // One that knows no codes, whatever stdout is.
  static Terminal plain();
  // Whether lines can be written over.
  bool live() const { return live_; }
  // Columns; 80 where it is no terminal.
  int width() const;
  int height() const;

  // `text` in a colour, where colours are wanted.
  std::string paint(Paint paint, std::string_view text) const;
  // "████░░░░", or "####----" where the locale has no UTF-8.
  std::string bar(double fraction, int columns) const;

  // Shows `text` as the line that follows what happens, in place of the one before; cut to
  // the width. Does nothing where lines can't be written over.
  void progress(const std::string& text);
  // The same for several lines, one below the other; they stay when something else comes.
  // Where they can't be written over, or are more than fit, does nothing.
  void block(const std::vector<std::string>& lines);
  bool blocked() const { return block_ > 0; }
  // A line that stays; it takes the place of the progress line.
  void line(const std::string& text = "");
  // A sentence: as line(), and on a terminal broken between words.
  void sentence(const std::string& text);

 private:
  bool live_;
  bool colours_;
  bool utf8_;
  bool open_ = false;      // whether a progress line is there
  std::size_t block_ = 0;  // lines of the block that is there
};

// `text` without what is beyond `columns`; codes of colours stay.
std::string cut_to(std::string_view text, std::size_t columns);
// How many columns `text` takes: without colours' codes, a letter of several bytes once.
std::size_t columns_of(std::string_view text);
// Adds spaces up to `columns`; negative: before the text.
std::string padded(std::string_view text, int columns);
// Lines of a table: the first column is text, all others are to the right. The first row is
// the head.
std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows);

}  // namespace brigade::tool
