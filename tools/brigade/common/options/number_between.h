// For options that take a number: from `low` to `high`, and no "nan", which CLI::Range lets
// pass.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

#include "common/options/number_text.h"

namespace brigade::tool {

inline CLI::Validator number_between(double low, double high) {
  const std::string range = "[" + readable(low) + " - " + readable(high) + "]";
  return {[low, high, range](std::string& text) -> std::string {
            double value = 0;
            const char* end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            const bool good =
                error == std::errc() && rest == end && value >= low && value <= high;
            return good ? "" : "Value " + text + " not in range " + range;
          },
          "FLOAT in " + range};
}

}  // namespace brigade::tool
