// Reads what the options of several subcommands take: numbers, names, amounts, lists.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/number_text.h"

namespace brigade::tool {

// The library's texts of numbers, by their short names.

using base::bytes_text;
using base::decimals;
using base::ms_text;
using base::rate_text;
using base::readable;
using base::size_text;
using base::with_sign;

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

// Refuses on the command line what CLI11 would take.

// For names of files and folders. An empty name, such as an unset variable gives, differs
// from an option that was not given, and is refused.
CLI::Validator not_empty();
// A whole number from 0 to 2^64 - 1. CLI11 alone would let -1 and 2^64 wrap around.
CLI::Validator seed_number();

// Parses amounts as people type them. Throws ConfigError that names the option, the text
// and the valid forms.

// Bytes: "4096", "64K", "1M", "25MB", "1GiB"; K, M and G are powers of 1024. 4 bytes to 64
// GiB, rounded down to whole float32 values. Takes "1M:256M" (doubling), "1M:256M:4" (times
// 4), and lists of these by comma.
std::vector<int64_t> parse_sizes(const std::string& text, const std::string& option);
// Bits a second: "100mbit", "1gbit", "2.5 Gbit/s", "800k"; bits without a unit. Throws
// ConfigError, which names `flag`, for anything else and outside of 8 kbit/s to 1 Tbit/s.
double parse_rate(std::string_view text, std::string_view flag);

// The words between commas. Throws ConfigError for an empty one.
std::vector<std::string> parse_list(const std::string& text, const std::string& option);

}  // namespace brigade::tool
