// CSV: a line an example, numbers and a class.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "base/hash.h"
#include "brigade/error.h"
#include "train/data/data.h"

namespace brigade::tool {
namespace {

constexpr std::size_t kMostClasses = 1000;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() &&
         (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

bool is_number(std::string_view text, double& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}
bool is_number(std::string_view text) {
  double ignored = 0;
  return is_number(text, ignored);
}

class TableReader {
 public:
  TableReader(std::string_view text, const std::string& name, const std::string& label)
      : text_(text), name_(name), label_(label) {}

  TrainData read() {
    for (; !text_.empty(); ++line_) {
      const std::size_t length = std::min(text_.find('\n'), text_.size());
      const std::string_view line = text_.substr(0, length);
      text_.remove_prefix(std::min(length + 1, text_.size()));
      if (trimmed(line).empty()) continue;
      split(line);
      if (columns_ == 0) {
        if (begin()) continue;
      }
      take();
    }
    if (labels_.empty()) throw ConfigError("--data: " + name_ + " holds no rows");
    return finish();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError("--data: " + name_ + ", line " + std::to_string(line_) + ": " + what);
  }

  void split(std::string_view line) {
    if (columns_ == 0) {
      // Whichever the first line has.
      for (const char c : {',', ';', '\t'}) {
        separator_ = c;
        if (line.find(c) != std::string_view::npos) break;
      }
    }
    fields_.clear();
    while (true) {
      const std::size_t length = std::min(line.find(separator_), line.size());
      fields_.push_back(trimmed(line.substr(0, length)));
      if (length == line.size()) return;
      line.remove_prefix(length + 1);
    }
  }

  // Looks at the first line; true: it has the names of the columns.
  bool begin() {
    columns_ = fields_.size();
    if (columns_ < 2) {
      refuse(
          "has one column only; expected numbers and a class between commas, semicolons "
          "or tabs");
    }
    place_ = columns_ - 1;
    const bool named = find_label();
    for (std::size_t i = 0; i < columns_; ++i) {
      if (i != place_ && !is_number(fields_[i])) return true;
    }
    return named;
  }

  // True where the label was found by its name.
  bool find_label() {
    if (label_.empty()) return false;
    const auto found = std::ranges::find(fields_, std::string_view(label_));
    if (found != fields_.end() && !is_number(label_)) {
      place_ = static_cast<std::size_t>(found - fields_.begin());
      return true;
    }
    std::size_t number = 0;
    const auto [end, error] =
        std::from_chars(label_.data(), label_.data() + label_.size(), number);
    if (error != std::errc() || end != label_.data() + label_.size() || number < 1 ||
        number > columns_) {
      refuse("--label is '" + label_ +
             "'; expected a name of this line, or a number from 1 "
             "to " +
             std::to_string(columns_));
    }
    place_ = number - 1;
    return false;
  }

  void take() {
    if (fields_.size() != columns_) {
      refuse("has " + std::to_string(fields_.size()) + " columns, expected " +
             std::to_string(columns_));
    }
    for (std::size_t i = 0; i < columns_; ++i) {
      if (i == place_) continue;
      double value = 0;
      if (!is_number(fields_[i], value)) {
        refuse("column " + std::to_string(i + 1) +
               (fields_[i].empty() ? " is empty; expected a number"
                                   : " is '" + std::string(fields_[i].substr(0, 40)) +
                                         "'; expected a finite number"));
      }
      numbers_.push_back(static_cast<float>(value));
    }
    if (fields_[place_].empty()) {
      refuse("column " + std::to_string(place_ + 1) + ", the class, is empty");
    }
    labels_.emplace_back(fields_[place_]);
    if (classes_.insert(labels_.back()).second && classes_.size() > kMostClasses) {
      refuse("the column of the classes has more than " + std::to_string(kMostClasses) +
             " different values; --label names another one");
    }
  }

  // Numbers in their order, else words in theirs.
  std::vector<std::string> ordered_classes() const {
    std::vector<std::string> names(classes_.begin(), classes_.end());
    if (!std::ranges::all_of(names, [](const std::string& n) { return is_number(n); }))
      return names;
    std::ranges::sort(names, {}, [](const std::string& text) {
      double value = 0;
      is_number(text, value);
      return value;
    });
    return names;
  }

  TrainData finish() {
    TrainData data{.kind = TrainData::Kind::table, .name = name_};
    data.height = 1;
    data.width = static_cast<std::int64_t>(columns_) - 1;
    data.classes = ordered_classes();
    if (data.classes.size() < 2) {
      throw ConfigError("--data: " + name_ + ": all rows are of the one class '" +
                        data.classes[0] + "'; --label names another column");
    }
    std::map<std::string, std::int64_t> number;
    for (const std::string& name : data.classes)
      number.emplace(name, static_cast<std::int64_t>(number.size()));
    const std::size_t width = columns_ - 1;
    for (std::size_t row = 0; row < labels_.size(); ++row) {
      // Every fifth row is for the test.
      Examples& part = row % 5 == 4 ? data.test : data.train;
      const auto* begin = numbers_.data() + row * width;
      part.numbers.insert(part.numbers.end(), begin, begin + width);
      part.labels.push_back(number[labels_[row]]);
    }
    return data;
  }

  std::string_view text_;
  const std::string& name_;
  const std::string& label_;
  std::size_t line_ = 1;
  char separator_ = ',';
  std::size_t columns_ = 0;
  std::size_t place_ = 0;  // of the class
  std::vector<std::string_view> fields_;
  std::vector<float> numbers_;
  std::vector<std::string> labels_;
  std::set<std::string> classes_;
};

}  // namespace

TrainData parse_table(std::string_view text, const std::string& name,
                      const std::string& label) {
  TrainData data = TableReader(text, name, label).read();
  data.fingerprint = base::hash64(text);
  return data;
}

}  // namespace brigade::tool
