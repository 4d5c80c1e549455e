#include "report/svg.h"

#include <cmath>

#include "base/number_text.h"

namespace brigade::report {
namespace {

// The round step (1, 2 or 5 times a power of ten) that gives about `wanted` marks.
double round_step(double range, int wanted) {
  const double rough = range / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string coordinate(double value) {
  const double rounded = std::round(value * 10) / 10 + 0.0;  // not -0
  return base::decimals(rounded, rounded == std::round(rounded) ? 0 : 1);
}

Scale::Scale(Kind kind, double low, double high, double from, double to)
    : kind_(kind), low_(low), high_(high), from_(from), to_(to) {}

Scale Scale::from_zero(double high, double from, double to) {
  return {Kind::linear, 0, high > 0 ? high * 1.04 : 1, from, to};
}

double Scale::operator()(double value) const {
  if (kind_ == Kind::linear) return from_ + (to_ - from_) * (value - low_) / (high_ - low_);
  return from_ + (to_ - from_) * std::log(value / low_) / std::log(high_ / low_);
}

bool Scale::holds(double value) const {
  const double slack = (high_ - low_) * 1e-9;
  return value >= low_ - slack && value <= high_ + slack;
}

std::vector<double> Scale::marks(int wanted) const {
  std::vector<double> all;
  if (kind_ == Kind::linear) {
    const double step = round_step(high_ - low_, wanted);
    for (double i = std::ceil(low_ / step - 1e-9); holds(i * step); ++i)
      all.push_back(i * step);
    return all;
  }
  const bool few = std::log10(high_ / low_) < 1.7;
  const double start = std::pow(10.0, std::floor(std::log10(low_)));
  for (double power = start; power <= high_ * 1.0001; power *= 10) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if ((factor == 1.0 || few) && holds(power * factor)) all.push_back(power * factor);
    }
  }
  return all;
}

}  // namespace brigade::report
