// "key=value,key=value" of a hook's spec. A comma in parentheses belongs to the value.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace brigade::base {

// The candidate that `word` most likely means, if one is near: two edits, or one in short
// words.
std::string_view nearest(std::string_view word,
                         std::span<const std::string_view> candidates);
// "; did you mean 'x'? known: a, b, x"
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates);

// An option that may be given without a value, and the value that it then has.
struct BareOption {
  std::string_view key;
  std::string value;
};

// Each getter throws a ConfigError that names hook, option, value and rule.
class OptionSpec {
 public:
  // `kind` is its name in errors.
  OptionSpec(std::string_view hook, std::string_view text,
             std::span<const std::string_view> known, const char* kind = "hook",
             std::span<const BareOption> bare = {});
  int64_t integer(const std::string& key, int64_t fallback) const;
  uint64_t natural(const std::string& key, uint64_t fallback) const;
  // A natural number that fits into an int64_t.
  int64_t size(const std::string& key, int64_t fallback) const;
  double number(const std::string& key, double fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  bool flag(const std::string& key, bool fallback) const;

 private:
  [[noreturn]] void refuse(const std::string& key, const char* expected) const;
  std::string hook_;  // "hook 'fp16'"
  std::map<std::string, std::string> values_;
};

}  // namespace brigade::base
