#include "train/data_set.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <charconv>
#include <string>
#include <vector>

#include "brigade/error.h"

namespace brigade::tool {
namespace {

[[noreturn]] void fail(std::string_view name, std::size_t line, const std::string& what) {
  throw ConfigError(std::string(name) + ", line " + std::to_string(line) + ": " + what);
}

// Appends the numbers of one line.
void parse_line(std::string_view line, std::vector<float>& values, std::string_view name,
                std::size_t number) {
  const char* at = line.data();
  const char* end = at + line.size();
  while (true) {
    float value = 0;
    auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (stop != end && *stop != ',')) {
      fail(name, number,
           "expected numbers between commas, got '" + std::string(at, end) + "'");
    }
    values.push_back(value);
    if (stop == end) return;
    at = stop + 1;
  }
}

}  // namespace

DataSet parse_csv(std::string_view text, double scale, std::string_view name) {
  std::vector<float> values;
  std::size_t columns = 0;
  std::int64_t rows = 0;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    std::size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::size_t before = values.size();
    parse_line(line, values, name, number);
    ++rows;
    if (columns == 0) columns = values.size();
    if (values.size() - before != columns || columns < 2) {
      fail(name, number,
           "has " + std::to_string(values.size() - before) + " numbers, expected " +
               (columns < 2 ? "two or more" : std::to_string(columns)));
    }
  }
  if (rows == 0) throw ConfigError(std::string(name) + " holds no rows");
  auto width = static_cast<std::int64_t>(columns);
  at::Tensor table = at::empty({rows, width}, at::kFloat);
  std::copy(values.begin(), values.end(), table.data_ptr<float>());
  return {.features = table.narrow(1, 0, width - 1).div(scale),
          .labels = table.select(1, width - 1).to(at::kLong)};
}

TrainAndTest split_every_fifth(const DataSet& all) {
  at::Tensor is_test = at::arange(all.size()).remainder(5).eq(4);
  at::Tensor train = is_test.logical_not().nonzero().squeeze(1);
  at::Tensor test = is_test.nonzero().squeeze(1);
  auto pick = [&](const at::Tensor& rows) {
    return DataSet{all.features.index_select(0, rows), all.labels.index_select(0, rows)};
  };
  return {.train = pick(train), .test = pick(test)};
}

}  // namespace brigade::tool
