#include "hooks/hook_text.h"

#include <array>

#include "brigade/error.h"
#include "brigade/hooks.h"

namespace brigade {

std::string_view hook_head(std::string_view text) {
  return text.substr(0, text.find_first_of(":("));
}

std::string_view hook_options(std::string_view text) {
  const size_t begin = text.find_first_of(":(");
  if (begin == std::string_view::npos) return {};
  const std::string_view options = text.substr(begin + 1);
  if (text[begin] == ':') return options;
  int open = 1;
  size_t end = 0;
  for (; end < options.size() && open > 0; ++end)
    open += options[end] == '(' ? 1 : options[end] == ')' ? -1 : 0;
  if (open > 0 || end < options.size()) {
    throw ConfigError("hook '" + std::string(text) +
                      "': expected ')' at its end, and nowhere before");
  }
  return options.substr(0, options.size() - 1);
}

std::span<const base::BareOption> bare_options() {
  static const std::array all{base::BareOption{"small", std::to_string(kSmall)}};
  return all;
}

std::vector<std::string_view> split_outside(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  if (text.empty()) return words;
  int open = 0;
  size_t begin = 0;
  for (size_t place = 0; place <= text.size(); ++place) {
    if (place == text.size() || (text[place] == separator && open == 0)) {
      words.push_back(text.substr(begin, place - begin));
      begin = place + 1;
    } else {
      open += text[place] == '(' ? 1 : text[place] == ')' ? -1 : 0;
    }
  }
  return words;
}

std::vector<RuleText> rule_texts(std::string_view options) {
  std::vector<RuleText> list;
  for (const std::string_view word : split_outside(options, ';')) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size()) {
      throw ConfigError("hook 'rules': rule '" + std::string(word) +
                        "': expected PATTERN=HOOK, as in '*.bias=allreduce;*=int8'");
    }
    list.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return list;
}

bool fits(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  // The position after the last star, and the one in the name where the rest is tried.
  size_t star = std::string_view::npos, tried = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      tried = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star;
      n = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace brigade
