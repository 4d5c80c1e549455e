#include "launch/workers/printed_loss.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace brigade::launching {
namespace {

constexpr std::string_view kLoss = "loss";
// A loss stands near the beginning of its line.
constexpr size_t kLooked = 1000;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool same_letter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == b;
}

// The number that `text` begins with, as a word of its own.
std::optional<double> leading_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || !is_word(*end);
  if (error != std::errc() || !whole) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> printed_loss(std::string_view line) {
  line = line.substr(0, kLooked);
  for (auto at = line.begin();; at += kLoss.size()) {
    at = std::search(at, line.end(), kLoss.begin(), kLoss.end(), same_letter);
    if (at == line.end()) return std::nullopt;
    if (at != line.begin() && is_letter(at[-1])) continue;  // floss
    std::string_view rest(at + kLoss.size(), line.end());
    const size_t number = rest.find_first_not_of(" \t:=");
    if (number == 0 || number == std::string_view::npos) continue;
    if (const auto value = leading_number(rest.substr(number))) return value;
  }
}

void PrintedLosses::add(double loss) {
  ++count;
  if (!std::isfinite(loss)) ++bad;
  last = loss;
}

PrintedLosses PrintedLosses::with(const PrintedLosses& other) const {
  return {count + other.count, bad + other.bad, count > 0 ? last : other.last};
}

}  // namespace brigade::launching
