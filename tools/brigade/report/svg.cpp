#include "report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace brigade::tool {
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

std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
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
  return printed(rounded == std::round(rounded) ? "%.0f" : "%.1f", rounded);
}

std::string readable(double value) {
  if (!std::isfinite(value)) return "n/a";
  if (value == 0) return "0";  // not "-0"
  const double size = std::abs(value);
  if (size >= 1000) {
    std::string text = printed("%.0f", value);
    for (int at = static_cast<int>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
      text.insert(static_cast<std::size_t>(at), ",");
    return text;
  }
  return printed(size >= 100 ? "%.0f" : "%.3g", value);
}

std::string ms_text(double ms) {
  return printed(ms < 10 ? "%.2f" : ms < 100 ? "%.1f" : "%.0f", ms);
}

std::string bytes_text(double bytes) {
  if (bytes >= 0.9995e9) return readable(bytes / 1e9) + " GB";
  if (bytes >= 0.9995e6) return readable(bytes / 1e6) + " MB";
  if (bytes >= 0.9995e3) return readable(bytes / 1e3) + " kB";
  return readable(bytes) + " B";
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

}  // namespace brigade::tool
