// What the report is made of: its drawings, its look, and what its page does.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace brigade::report {

// For text and attributes of HTML and SVG.
std::string escaped(std::string_view text);
// With one decimal at most: enough for a coordinate.
std::string coordinate(double value);

// Where values lie on an axis of `length`.
class Scale {
 public:
  enum class Kind { linear, logarithmic };
  // REQUIRES: low < high; both > 0 for a logarithmic one.
  Scale(Kind kind, double low, double high, double from, double to);
  // Up to a round number above `high`.
  static Scale from_zero(double high, double from, double to);

  double operator()(double value) const;
  bool holds(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  // Round values to put marks at, about `wanted` of them.
  std::vector<double> marks(int wanted) const;

 private:
  Kind kind_;
  double low_, high_, from_, to_;
};

extern const char* const kReportStyle;   // CSS
extern const char* const kReportScript;  // JavaScript

}  // namespace brigade::report
