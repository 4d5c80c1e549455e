// Examples to train on: numbers in, a class out.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace brigade::tool {

// Row i of `features` belongs to entry i of `labels`.
struct DataSet {
  at::Tensor features;  // float, one row an example
  at::Tensor labels;    // int64
  std::int64_t size() const { return labels.size(0); }
};

struct TrainAndTest {
  DataSet train;
  DataSet test;
};

// Lines of comma-separated numbers, as many in each, the last one the label; empty lines
// are skipped. Features are divided by `scale`. `name` is what errors call the text. Throws
// ConfigError with the line's number.
DataSet parse_csv(std::string_view text, double scale, std::string_view name);

// Every fifth row is for the test: fixed, and one slice in any language.
TrainAndTest split_every_fifth(const DataSet& all);

}  // namespace brigade::tool
