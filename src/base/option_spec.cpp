#include "base/option_spec.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <vector>

#include "brigade/error.h"

namespace brigade::base {
namespace {

// The Levenshtein distance.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, change});
    }
  }
  return row.back();
}

template <class Number>
bool parse(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc() && result.ptr == end;
}

// The position of the first comma outside of parentheses, or the end.
size_t end_of_item(std::string_view text) {
  int open = 0;
  for (size_t place = 0; place < text.size(); ++place) {
    if (text[place] == ',' && open <= 0) return place;
    open += text[place] == '(' ? 1 : text[place] == ')' ? -1 : 0;
  }
  return text.size();
}

}  // namespace

std::string_view nearest(std::string_view word,
                         std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t fewest = word.size() < 5 ? 2 : 3;
  for (std::string_view candidate : candidates) {
    if (const size_t count = edits(word, candidate); count < fewest) {
      fewest = count;
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(std::string_view word,
                       std::span<const std::string_view> candidates) {
  std::string text;
  if (const std::string_view near = nearest(word, candidates); !near.empty()) {
    text += "; did you mean '" + std::string(near) + "'?";
  } else {
    text += ";";
  }
  text += " known:";
  for (std::string_view candidate : candidates) {
    text += (candidate == candidates.front() ? " " : ", ") + std::string(candidate);
  }
  return text;
}

OptionSpec::OptionSpec(std::string_view hook, std::string_view text,
                       std::span<const std::string_view> known, const char* kind,
                       std::span<const BareOption> bare)
    : hook_(std::string(kind) + " '" + std::string(hook) + "'") {
  while (!text.empty()) {
    const std::string_view item = text.substr(0, end_of_item(text));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw ConfigError(
          hook_ + " has no option '" + std::string(key) + "'" +
          (known.empty() ? std::string(": it has none") : suggestion(key, known)));
    }
    const auto alone = std::ranges::find(bare, key, &BareOption::key);
    if (equals == std::string_view::npos && alone == bare.end()) {
      throw ConfigError(hook_ + ": option '" + std::string(key) + "' has no value; write " +
                        std::string(key) + "=VALUE");
    }
    const std::string_view value =
        equals == std::string_view::npos ? alone->value : item.substr(equals + 1);
    if (!values_.emplace(key, value).second) {
      throw ConfigError(hook_ + ": option '" + std::string(key) + "' is given twice");
    }
  }
}

void OptionSpec::refuse(const std::string& key, const char* expected) const {
  throw ConfigError(hook_ + ": " + key + " is '" + values_.at(key) + "', expected " +
                    expected);
}

int64_t OptionSpec::integer(const std::string& key, int64_t fallback) const {
  const auto found = values_.find(key);
  if (found != values_.end() && !parse(found->second, fallback))
    refuse(key, "a whole number");
  return fallback;
}

uint64_t OptionSpec::natural(const std::string& key, uint64_t fallback) const {
  const auto found = values_.find(key);
  if (found != values_.end() && !parse(found->second, fallback))
    refuse(key, "a whole number, 0 or more");
  return fallback;
}

int64_t OptionSpec::size(const std::string& key, int64_t fallback) const {
  const auto found = values_.find(key);
  if (found != values_.end() && (!parse(found->second, fallback) || fallback < 0))
    refuse(key, "a whole number, 0 or more");
  return fallback;
}

double OptionSpec::number(const std::string& key, double fallback) const {
  const auto found = values_.find(key);
  if (found != values_.end() && !parse(found->second, fallback)) refuse(key, "a number");
  return fallback;
}

std::string OptionSpec::text(const std::string& key, const std::string& fallback) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  if (found->second.empty()) refuse(key, "a text");
  return found->second;
}

bool OptionSpec::flag(const std::string& key, bool fallback) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  if (found->second == "1" || found->second == "true" || found->second == "on") return true;
  if (found->second == "0" || found->second == "false" || found->second == "off")
    return false;
  refuse(key, "1 or 0 (also true, false, on, off)");
}

}  // namespace brigade::base
