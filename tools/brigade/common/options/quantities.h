// Amounts as people type them. What cannot be read is a ConfigError that names the option,
// the text and the valid forms.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::tool {

// Bytes: "4096", "64K", "1M", "25MB", "1GiB"; K, M and G are powers of 1024. 4 bytes to
// 64 GiB, rounded down to whole float32 values. "1M:256M" (doubling), "1M:256M:4" (times
// 4), and lists of these by comma.
std::vector<int64_t> parse_sizes(const std::string& text, const std::string& option);
// Bits a second. "100mbit", "1gbit", "2.5 Gbit/s", "800k"; without a unit bits. Throws
// ConfigError, which names `flag`, for anything else and outside of 8 kbit/s to 1 Tbit/s.
double parse_rate(std::string_view text, std::string_view flag);

// The words between commas; a ConfigError for an empty one.
std::vector<std::string> parse_list(const std::string& text, const std::string& option);

}  // namespace brigade::tool
