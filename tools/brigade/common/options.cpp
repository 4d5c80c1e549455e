#include "common/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "brigade/error.h"

namespace brigade::tool {

CLI::Validator not_empty() {
  return {[](const std::string& text) {
            return text.empty() ? std::string("the name is empty") : std::string();
          },
          ""};
}

CLI::Validator seed_number() {
  return {[](const std::string& text) {
            std::uint64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [stopped, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stopped == end) return std::string();
            return "'" + text + "' is no whole number from 0 to 18446744073709551615";
          },
          ""};
}

namespace {

constexpr const char* kSizeForms =
    "bytes (4 to 64G) such as 64K, 1M or 1GiB, K, M and G being powers of 1024";
constexpr const char* kSizesForms =
    "a size (64K, 1M), a doubling range (1M:256M), one with a factor (1M:256M:4), or a "
    "list of these by comma";
constexpr double kSlowest = 8e3, kFastest = 1e12;  // bits a second
[[noreturn]] void refuse(const std::string& text, const std::string& option,
                         const char* forms) {
  throw ConfigError(option + " is '" + text + "'; it must be " + forms);
}

struct Quantity {
  double value;
  std::string unit;  // in lower case
};

std::optional<Quantity> read_quantity(const std::string& text) {
  Quantity quantity{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, quantity.value);
  if (error != std::errc() || !std::isfinite(quantity.value)) return {};
  quantity.unit.assign(rest, end);
  std::ranges::transform(quantity.unit, quantity.unit.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  return quantity;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

int64_t parse_size(const std::string& text, const std::string& option) {
  const auto quantity = read_quantity(text);
  if (!quantity) refuse(text, option, kSizeForms);
  std::string unit = quantity->unit;
  if (unit.ends_with("ib")) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with("b")) {
    unit.pop_back();
  }
  const std::array<std::string, 4> units{"", "k", "m", "g"};
  const auto found = std::ranges::find(units, unit);
  if (found == units.end()) refuse(text, option, kSizeForms);
  const double bytes =
      quantity->value * std::pow(1024.0, static_cast<double>(found - units.begin()));
  if (bytes < 4 || bytes > 64.0 * 1024 * 1024 * 1024) refuse(text, option, kSizeForms);
  return static_cast<int64_t>(bytes) / 4 * 4;
}

void add_range(const std::string& text, const std::string& option,
               std::vector<int64_t>& sizes) {
  const auto parts = split(text, ':');
  if (parts.size() > 3 || parts[0].empty()) refuse(text, option, kSizesForms);
  const int64_t first = parse_size(parts[0], option);
  const int64_t last = parts.size() > 1 ? parse_size(parts[1], option) : first;
  int factor = 2;
  if (parts.size() == 3) {
    const auto given = read_quantity(parts[2]);
    if (!given || !given->unit.empty() || given->value < 2 || given->value > 1024 ||
        given->value != std::floor(given->value)) {
      refuse(text, option, "a range whose factor is a whole number from 2 to 1024");
    }
    factor = static_cast<int>(given->value);
  }
  if (last < first) refuse(text, option, "a range from a smaller size to a larger one");
  for (int64_t size = first; size <= last; size *= factor) sizes.push_back(size);
}

}  // namespace

std::vector<int64_t> parse_sizes(const std::string& text, const std::string& option) {
  std::vector<int64_t> sizes;
  for (const std::string& range : parse_list(text, option)) add_range(range, option, sizes);
  return sizes;
}

double parse_rate(std::string_view text, std::string_view flag) {
  double number = 0;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (; rest != text.data() + text.size(); ++rest) {
    if (*rest != ' ') unit += static_cast<char>(std::tolower(*rest));
  }
  for (const std::string_view end : {"/s", "ps", "bit", "b"}) {
    if (unit.ends_with(end)) unit = unit.substr(0, unit.size() - end.size());
  }
  constexpr std::string_view kUnits = "kmgt";
  const std::size_t place = kUnits.find(unit);
  if (!unit.empty() && (unit.size() > 1 || place == std::string_view::npos))
    error = std::errc::invalid_argument;
  const double rate =
      unit.empty() ? number : number * std::pow(1000.0, static_cast<double>(place) + 1);
  if (error != std::errc() || !(rate >= kSlowest && rate <= kFastest)) {
    throw ConfigError(std::string(flag) + " is '" + std::string(text) +
                      "'; it must be a rate from 8kbit to 1tbit, such as 100mbit or 1gbit");
  }
  return rate;
}

std::vector<std::string> parse_list(const std::string& text, const std::string& option) {
  auto words = split(text, ',');
  for (const std::string& word : words) {
    if (word.empty()) refuse(text, option, "a list with a word between every two commas");
  }
  return words;
}

}  // namespace brigade::tool
