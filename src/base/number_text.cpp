#include "base/number_text.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace brigade::base {
namespace {

std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string with_unit(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, value < 10 ? "%.3g %s" : "%.4g %s", value, unit);
  return text;
}

}  // namespace

std::string decimals(double value, int places) {
  if (!std::isfinite(value)) return "n/a";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

std::string with_sign(double value, int places) {
  return (value >= 0 ? "+" : "") + decimals(value, places);
}

std::string readable(double value) {
  if (!std::isfinite(value)) return "n/a";
  if (value == 0) return "0";  // not "-0"
  const double size = std::abs(value);
  if (size >= 1000) {
    std::string text = printed("%.0f", value);
    for (int at = static_cast<int>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
      text.insert(static_cast<std::size_t>(at), 1, ',');
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

std::string size_text(double bytes) {
  if (bytes < 1024) return with_unit(bytes, "B");
  if (bytes < 1024 * 1024) return with_unit(bytes / 1024, "KiB");
  if (bytes < 1024.0 * 1024 * 1024) return with_unit(bytes / (1024 * 1024), "MiB");
  return with_unit(bytes / (1024.0 * 1024 * 1024), "GiB");
}

std::string rate_text(double bits_per_second) {
  constexpr std::array kUnits{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
  std::size_t unit = 0;
  while (bits_per_second >= 999.5 && unit + 1 < kUnits.size()) {
    bits_per_second /= 1000;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s", bits_per_second, kUnits[unit]);
  return text;
}

}  // namespace brigade::base
