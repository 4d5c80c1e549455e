// The parts of the report: its drawings, its style and its script.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace brigade::report {

// Escapes text for content and attributes of HTML and SVG.
std::string escaped(std::string_view text);
// Prints at most one decimal, which is enough for a coordinate.
std::string coordinate(double value);

// Maps values to positions on an axis.
class Scale {
 public:
  enum class Kind { linear, logarithmic };
  // REQUIRES: low < high; both > 0 for a logarithmic one.
  Scale(Kind kind, double low, double high, double from, double to);
  // Ends at a round number above `high`.
  static Scale from_zero(double high, double from, double to);

  double operator()(double value) const;
  bool holds(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  // Returns round values for ticks, about `wanted` of them.
  std::vector<double> marks(int wanted) const;

 private:
  Kind kind_;
  double low_, high_, from_, to_;
};

extern const char* const kReportStyle;   // CSS
extern const char* const kReportScript;  // JavaScript

}  // namespace brigade::report
